// See backend/ops/q_norm_rope_kv_insert.h for the contract.
#include "backend/cpu/scratch.h"
#include "backend/page_codec.h"

namespace fathom {

Status CpuBackend::DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) {
  const auto d = static_cast<size_t>(args.q.dim(2));
  const PageFormat& format = args.swa.format;
  FATHOM_RETURN_IF_ERROR(
      Fits("q_norm_rope_kv_insert: head dim", args.q.dim(2), scratch_->limits.max_head_dim));
  const std::span<const BlockTable> tables = args.plan->TablesFor(CacheKind::kSwaKv);
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    ForEach(rows.num_rows, 8 * args.q.row_size() + 32 * args.q.dim(2), [&](int64_t r, int) {
      const int64_t i = rows.first_row + r;
      const std::span<const float> cos_sin = args.cos_sin.row(i);
      const std::span<float> heads = args.q.row(i);
      for (size_t h = 0; h < heads.size(); h += d) {
        cpu::QueryNorm(heads.subspan(h, d), args.norm_eps, official());
        cpu::RopeRow(heads.subspan(h, d), cos_sin, 1.0f, official());
      }
      const std::span<const float> kv = args.kv.row(i);
      const std::span<float> entry = args.step_kv.row(i);
      cpu::ScaleRow(kv, args.kv_norm_weight.data(), cpu::InverseRms(kv, args.norm_eps), official(),
                    entry.data());
      cpu::RopeRow(entry, cos_sin, 1.0f, official());
      // Stored before it is rounded: rounding again may choose another scale for the same values.
      if (HasBlock(args.swa, tables[s], rows.start + r)) {
        StoreEntry(format, Locate(args.swa, tables[s], rows.start + r), entry);
      }
      // RoundKvEntry, vectorised.
      if (format.encoding != EntryEncoding::kF32) {
        const std::span<float> rotated = entry.last(static_cast<size_t>(format.rope_dim));
        cpu::QuantiseE4m3Groups(entry.first(d - rotated.size()), 64, entry.data());
        cpu::RoundBf16(rotated, rotated.data());
      }
    });
  }
  return OkStatus();
}

}  // namespace fathom
