// See backend/ops/indexer_topk.h for the contract.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/page_codec.h"
#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

// Channels 32 at a time, each of those products rounded once.
float GroupedDot(std::span<const float> a, std::span<const float> b) {
  float sum = 0.0f;
  for (size_t i = 0; i < a.size(); i += 32) {
    const size_t n = std::min<size_t>(32, a.size() - i);
    sum += reference::Dot(a.subspan(i, n), b.subspan(i, n));
  }
  return sum;
}

}  // namespace

Status ReferenceBackend::DoIndexerTopk(const IndexerTopkArgs& args) {
  const auto num_heads = static_cast<size_t>(args.q.dim(1));
  const auto d = static_cast<size_t>(args.q.dim(2));
  const double factor =
      1.0 / std::sqrt(static_cast<double>(d)) / std::sqrt(static_cast<double>(num_heads));
  const std::span<const BlockTable> tables = args.plan->TablesFor(CacheKind::kC4IndexKeys);
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    const int known = VisibleEntries(rows.start + rows.num_rows - 1, 4);
    std::vector<float> keys(static_cast<size_t>(known) * d);
    for (int j = 0; j < known; ++j) {
      LoadEntry(args.keys.format, Locate(args.keys, tables[s], j),
                std::span(keys).subspan(static_cast<size_t>(j) * d, d));
    }
    for (int i = rows.first_row; i < rows.first_row + rows.num_rows; ++i) {
      const int visible = VisibleEntries(rows.start + (i - rows.first_row), 4);
      std::vector<int32_t> order(static_cast<size_t>(visible));
      std::iota(order.begin(), order.end(), 0);
      if (visible > args.topk) {
        std::vector<float> q(args.q.row(i).begin(), args.q.row(i).end());
        std::vector<float> weights(num_heads);
        for (size_t h = 0; h < num_heads; ++h) {
          const std::span<float> head = std::span(q).subspan(h * d, d);
          reference::RopeRow(numerics(), head, args.cos_sin.row(i), 1.0f);
          reference::HadamardRow(numerics(), head);
          if (numerics() == Numerics::kOfficial) SimulateE2m1(head, 32);
          const float w = reference::Bf16(numerics(), args.head_weights.row(i)[h]);
          weights[h] = reference::Bf16(numerics(), static_cast<float>(w * factor));
        }
        std::vector<float> score(static_cast<size_t>(visible), 0.0f);
        for (size_t j = 0; j < score.size(); ++j) {
          for (size_t h = 0; h < num_heads; ++h) {
            const float dot =
                GroupedDot(std::span(q).subspan(h * d, d), std::span(keys).subspan(j * d, d));
            score[j] += weights[h] * std::max(dot, 0.0f);
          }
        }
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
          return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
        });
        order.resize(static_cast<size_t>(args.topk));
        std::sort(order.begin(), order.end());
      }
      const std::span<int32_t> out = args.entries.row(i);
      std::fill(std::copy(order.begin(), order.end(), out.begin()), out.end(), -1);
      args.num_entries.data()[i] = static_cast<int32_t>(order.size());
    }
  }
  return OkStatus();
}

}  // namespace fathom
