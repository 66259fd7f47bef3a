// See backend/ops/inverse_rope_out.h for the contract.
#include "backend/cpu/scratch.h"

namespace fathom {

Status CpuBackend::DoInverseRopeOut(const InverseRopeOutArgs& args) {
  const int64_t n = args.o.dim(0);
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: rows", n, scratch_->limits.max_rows));
  FATHOM_RETURN_IF_ERROR(
      Fits("inverse_rope_out: columns", args.wo_a.cols, scratch_->limits.max_cols));
  const auto d = static_cast<size_t>(args.o.dim(2));
  ForEach(n, args.o.dim(1) * args.cos_sin.dim(1) * 8, [&](int64_t i, int) {
    const std::span<float> heads = args.o.row(i);
    for (size_t h = 0; h < heads.size(); h += d) {
      cpu::RopeRow(heads.subspan(h, d), args.cos_sin.row(i), -1.0f, official());
    }
  });

  // Row blocks end at the end of a group: its rows share one slice of the heads.
  const int rank = args.wo_a.rows / args.groups;
  const int blocks = (rank + cpu::kRowBlock - 1) / cpu::kRowBlock;
  const int64_t width = args.wo_a.cols;
  ForEach(int64_t{args.groups} * blocks, cpu::kRowBlock * width * (n + 2),
          [&](int64_t task, int thread) {
            const auto group = static_cast<int>(task / blocks);
            const int in_group = static_cast<int>(task % blocks) * cpu::kRowBlock;
            const int row = group * rank + in_group;
            const int num_rows = std::min(cpu::kRowBlock, rank - in_group);
            MultiplyRows(
                args.wo_a, row, num_rows, n,
                [&](int64_t i) { return args.o.row(i).data() + group * width; }, thread,
                [&](int64_t first, int count, float* sums) {
                  if (official()) {
                    cpu::RoundBf16({sums, static_cast<size_t>(count) * cpu::kRowBlock}, sums);
                  }
                  for (int i = 0; i < count; ++i) {
                    std::memcpy(args.out.row(first + i).data() + row, sums + i * cpu::kRowBlock,
                                static_cast<size_t>(num_rows) * sizeof(float));
                  }
                });
          });
  return OkStatus();
}

}  // namespace fathom
