// See backend/ops/q_norm_rope_kv_insert.h for the contract.
#include "backend/cpu/scratch.h"
#include "backend/page_codec.h"

namespace fathom {

Status CpuBackend::DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) {
  const auto d = static_cast<size_t>(args.q.dim(2));
  FATHOM_RETURN_IF_ERROR(
      Fits("q_norm_rope_kv_insert: head dim", args.q.dim(2), scratch_->limits.max_head_dim));
  const std::span<const BlockTable> tables = args.plan->TablesFor(CacheKind::kSwaKv);
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    ForEach(rows.num_rows, 8 * args.q.row_size() + 32 * args.q.dim(2), [&](int64_t r, int thread) {
      const int64_t i = rows.first_row + r;
      const std::span<const float> cos_sin = args.cos_sin.row(i);
      const std::span<float> heads = args.q.row(i);
      for (size_t h = 0; h < heads.size(); h += d) {
        cpu::QueryNorm(heads.subspan(h, d), args.norm_eps, official());
        cpu::RopeRow(heads.subspan(h, d), cos_sin, 1.0f, official());
      }
      const std::span<const float> kv = args.kv.row(i);
      const std::span<float> entry(scratch_->thread_tile.part(thread), d);
      cpu::ScaleRow(kv, args.kv_norm_weight.data(), cpu::InverseRms(kv, args.norm_eps), official(),
                    entry.data());
      cpu::RopeRow(entry, cos_sin, 1.0f, official());
      StoreEntry(args.swa.format, Locate(args.swa, tables[s], rows.start + r), entry);
    });
  }
  return OkStatus();
}

}  // namespace fathom
