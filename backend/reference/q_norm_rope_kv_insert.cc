// See backend/ops/q_norm_rope_kv_insert.h for the contract.
#include <cmath>
#include "backend/reference/reference_backend.h"

#include "backend/page_codec.h"
#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

// The official per-head norm: every step of it rounds to bf16.
void QueryNorm(Numerics numerics, std::span<float> q, float eps) {
  const auto bf16 = [numerics](float x) { return reference::Bf16(numerics, x); };
  double sum = 0.0;
  for (float v : q) sum += bf16(v * v);
  const float mean = bf16(static_cast<float>(sum / static_cast<double>(q.size())));
  const float inverse = bf16(1.0f / std::sqrt(bf16(mean + eps)));
  for (float& v : q) v = bf16(v * inverse);
}

}  // namespace

Status ReferenceBackend::DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) {
  const auto d = static_cast<size_t>(args.q.dim(2));
  const std::span<const BlockTable> tables = args.plan->TablesFor(CacheKind::kSwaKv);
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    for (int i = rows.first_row; i < rows.first_row + rows.num_rows; ++i) {
      const std::span<const float> cos_sin = args.cos_sin.row(i);
      const std::span<float> heads = args.q.row(i);
      for (size_t h = 0; h < heads.size(); h += d) {
        QueryNorm(numerics(), heads.subspan(h, d), args.norm_eps);
        reference::RopeRow(numerics(), heads.subspan(h, d), cos_sin, 1.0f);
      }
      const std::span<float> kv = args.step_kv.row(i);
      reference::RmsNormRow(numerics(), args.kv.row(i), args.kv_norm_weight.elements(),
                            args.norm_eps, kv);
      reference::RopeRow(numerics(), kv, cos_sin, 1.0f);
      const Position position = rows.start + (i - rows.first_row);
      // Stored before it is rounded: rounding again may choose another scale for the same values.
      if (HasBlock(args.swa, tables[s], position)) {
        StoreEntry(args.swa.format, Locate(args.swa, tables[s], position), kv);
      }
      RoundKvEntry(args.swa.format, kv);
    }
  }
  return OkStatus();
}

}  // namespace fathom
