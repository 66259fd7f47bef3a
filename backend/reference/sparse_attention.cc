// See backend/ops/sparse_attention.h for the contract.
#include <algorithm>
#include <cmath>
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/page_codec.h"
#include "backend/reference/scalar_math.h"

namespace fathom {

Status ReferenceBackend::DoSparseAttention(const SparseAttentionArgs& args) {
  const auto num_heads = static_cast<size_t>(args.q.dim(1));
  const auto d = static_cast<size_t>(args.q.dim(2));
  const std::span<const BlockTable> swa_tables = args.plan->TablesFor(CacheKind::kSwaKv);
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    for (int i = rows.first_row; i < rows.first_row + rows.num_rows; ++i) {
      const Position position = rows.start + (i - rows.first_row);

      // The attended set: window entries first, then compressed ones, both ascending.
      std::vector<std::vector<float>> keys;
      const auto attend = [&](const PageView& pages, const BlockTable& table, int64_t entry) {
        keys.emplace_back(d);
        LoadEntry(pages.format, Locate(pages, table, entry), keys.back());
      };
      for (Position p = std::max(0, position - args.window + 1); p <= position; ++p) {
        if (p < rows.start) {
          attend(args.swa, swa_tables[s], p);
        } else {
          const std::span<const float> key = args.step_kv.row(rows.first_row + (p - rows.start));
          keys.emplace_back(key.begin(), key.end());
        }
      }
      if (!args.compressed.empty()) {
        const BlockTable& table = args.plan->TablesFor(args.compressed_kind)[s];
        if (args.entries.empty()) {
          for (int j = 0; j < VisibleEntries(position, args.ratio); ++j)
            attend(args.compressed, table, j);
        } else {
          for (int n = 0; n < args.num_entries.data()[i]; ++n) {
            attend(args.compressed, table, args.entries.row(i)[static_cast<size_t>(n)]);
          }
        }
      }

      for (size_t h = 0; h < num_heads; ++h) {
        const std::span<const float> q = args.q.row(i).subspan(h * d, d);
        std::vector<float> p(keys.size());
        for (size_t n = 0; n < keys.size(); ++n) p[n] = reference::Dot(q, keys[n]) * args.scale;
        const float max = *std::max_element(p.begin(), p.end());
        double sum = 0.0;
        for (float& v : p) sum += v = std::exp(v - max);
        const float den = static_cast<float>(sum) + std::exp(args.sink.data()[h] - max);
        std::vector<double> out(d, 0.0);
        for (size_t n = 0; n < keys.size(); ++n) {
          const double weight = p[n] / den;
          for (size_t c = 0; c < d; ++c) out[c] += weight * static_cast<double>(keys[n][c]);
        }
        const std::span<float> result = args.out.row(i).subspan(h * d, d);
        for (size_t c = 0; c < d; ++c) {
          result[c] = reference::Bf16(numerics(), static_cast<float>(out[c]));
        }
      }
    }
  }
  return OkStatus();
}

}  // namespace fathom
