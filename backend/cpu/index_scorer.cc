#include "backend/cpu/index_scorer.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/kernels.h"
#include "backend/step_plan.h"
#include "base/formats.h"

namespace fathom::cpu {
namespace {

constexpr int kPanelColumns = 128;  // what ByteKernels::pack_fp4 takes at once

int64_t Visible(Position start, int64_t r) {
  return VisibleEntries(start + static_cast<Position>(r), 4);
}

}  // namespace

IndexScorer::IndexScorer(Numerics numerics, const PageView& keys, int num_heads, int dim,
                         const IndexQueries& queries)
    : official_(numerics == Numerics::kOfficial),
      bytes_(official_ && keys.format.encoding == EntryEncoding::kE2m1 && dim % kPanelColumns == 0),
      keys_(keys),
      num_heads_(num_heads),
      dim_(dim),
      queries_(queries) {}

void IndexScorer::SetQuery(int64_t r, std::span<const float> q, std::span<const float> cos_sin,
                           std::span<const float> head_weights) const {
  const auto size = static_cast<size_t>(dim_);
  const double factor =
      1.0 / std::sqrt(static_cast<double>(dim_)) / std::sqrt(static_cast<double>(num_heads_));
  const std::span<float> rotated(queries_.rotated + r * static_cast<int64_t>(q.size()), q.size());
  std::copy(q.begin(), q.end(), rotated.begin());
  for (int h = 0; h < num_heads_; ++h) {
    const std::span<float> head = rotated.subspan(static_cast<size_t>(h) * size, size);
    RopeRow(head, cos_sin, 1.0f, official_);
    HadamardRow(head, official_);
    float w = head_weights[static_cast<size_t>(h)];
    w = official_ ? RoundToBf16(static_cast<float>(RoundToBf16(w) * factor))
                  : static_cast<float>(w * factor);
    queries_.weights[r * num_heads_ + h] = w;
    if (official_ && !bytes_) QuantiseE2m1Groups(head, head.data());
  }
  if (!bytes_) return;
  for (int64_t h = 0; h < num_heads_; ++h) {
    float* slot = queries_.slots + (r * num_heads_ + h) * dim_;
    Fp4Row(rotated.subspan(static_cast<size_t>(h) * size, size), SlotAt(slot, dim_));
    queries_.heads[r * num_heads_ + h] = slot;
  }
}

int IndexScorer::PackKeys(const BlockTable& table, int64_t j, int64_t end, int p,
                          const IndexTile& tile) const {
  const ByteKernels& kernels = ChosenByteKernels();
  const PageFormat& format = keys_.format;
  const EntryRef entry = Locate(keys_, table, j);
  const auto num = static_cast<int>(
      std::min({int64_t{kernels.lanes}, end - j, int64_t{format.entries_per_page - entry.row}}));
  // A page is a matrix of FP4 rows: values one after the other, then their scales.
  const auto* page = reinterpret_cast<const uint8_t*>(entry.page);
  const int64_t values = format.value_bytes() * entry.row;
  const int64_t scales = format.scale_offset() + format.scale_bytes() * entry.row;
  // Pages lie anywhere: the same rows of the next one are asked for.
  int64_t ahead = 0;
  if (const int64_t later = j + format.entries_per_page; HasBlock(keys_, table, later)) {
    ahead = Locate(keys_, table, later).page - entry.page;
    __builtin_prefetch(page + scales + ahead);
  }
  kernels.pack_fp4(page + values, page + scales, dim_, num, 0, dim_, ahead,
                   tile.codes + int64_t{p} * kMaxLanes * dim_,
                   tile.code_scales + int64_t{p} * kMaxLanes * (dim_ / kFp4Group));
  return num;
}

void IndexScorer::ScoreBytes(const BlockTable& table, int64_t from, int64_t to, Position start,
                             int64_t first, int64_t last, const IndexTile& tile, float* scores,
                             int64_t stride) const {
  const ByteKernels& kernels = ChosenByteKernels();
  const int64_t lanes = kernels.lanes;
  PanelPair panels;
  for (int p = 0; p < 2; ++p) {
    panels.codes[p] = tile.codes + int64_t{p} * kMaxLanes * dim_;
    panels.scales[p] = tile.code_scales + int64_t{p} * kMaxLanes * (dim_ / kFp4Group);
  }
  int64_t next = from;
  for (int64_t j = from; j < to; j = next) {
    int num[2];
    num[0] = PackKeys(table, j, to, 0, tile);
    next = j + num[0];
    num[1] = next < to ? PackKeys(table, next, to, 1, tile) : 0;
    next += num[1];
    if (num[1] == 0) {
      panels.codes[1] = panels.codes[0];
      panels.scales[1] = panels.scales[0];
    }
    for (int64_t r = first; r < last; ++r) {
      const int64_t visible = Visible(start, r);
      if (visible <= j) continue;
      std::fill_n(tile.dots, num_heads_ * 2 * kMaxLanes, 0.0f);
      kernels.multiply_fp4(panels,
                           {queries_.heads + r * num_heads_, num_heads_, dim_, /*digits=*/false}, 0,
                           dim_ / kFp4Group, tile.dots, 2 * kMaxLanes);
      const float* weights = queries_.weights + r * num_heads_;
      float* out = scores + r * stride + j;
      if (num[0] == lanes) {
        const auto n = static_cast<int>(std::min<int64_t>(lanes + num[1], visible - j));
        WeightedRelu(tile.dots, 2 * kMaxLanes, weights, num_heads_, n, out);
        continue;
      }
      // A panel that ends with its page: what stands in the other one is not next to it.
      for (int64_t p = 0, at = j; p < 2; at += num[p++]) {
        const auto n = static_cast<int>(std::min<int64_t>(num[p], visible - at));
        if (n <= 0) break;
        WeightedRelu(tile.dots + p * lanes, 2 * kMaxLanes, weights, num_heads_, n, out);
        out += num[p];
      }
    }
  }
}

void IndexScorer::Score(const BlockTable& table, int64_t from, int64_t to, Position start,
                        int64_t first, int64_t last, const IndexTile& tile, float* scores,
                        int64_t stride) const {
  to = std::min(to, Visible(start, last - 1));
  if (bytes_) return ScoreBytes(table, from, to, start, first, last, tile, scores, stride);
  const int64_t query_size = int64_t{num_heads_} * dim_;
  for (int64_t begin = from; begin < to; begin += kTile) {
    const int64_t end = std::min(to, begin + kTile);
    for (int64_t j = begin; j < end; ++j) {
      DecodeEntry(keys_.format, Locate(keys_, table, j), tile.entries + (j - begin) * dim_);
    }
    TransposeKeys(tile.entries, static_cast<int>(end - begin), dim_, tile.transposed);
    for (int64_t r = first; r < last; ++r) {
      const auto num = static_cast<int>(std::min(end, Visible(start, r)) - begin);
      if (num <= 0) continue;
      IndexScores(queries_.rotated + r * query_size, queries_.weights + r * num_heads_, num_heads_,
                  dim_, tile.transposed, num, scores + r * stride + begin);
    }
  }
}

}  // namespace fathom::cpu
