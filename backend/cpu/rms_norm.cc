// See backend/ops/rms_norm.h for the contract.
#include "backend/cpu/scratch.h"

namespace fathom {

Status CpuBackend::DoRmsNorm(const RmsNormArgs& args) {
  ForEach(args.x.dim(0), 4 * args.x.dim(1), [&](int64_t i, int) {
    const std::span<const float> x = args.x.row(i);
    cpu::ScaleRow(x, args.weight.data(), cpu::InverseRms(x, args.eps), official(),
                  args.out.row(i).data());
  });
  return OkStatus();
}

}  // namespace fathom
