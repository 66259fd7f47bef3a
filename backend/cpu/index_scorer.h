// The scores of index queries and stored keys (backend/ops/indexer_topk.h).
//
// In official numerics with FP4 pages, keys are panels of FP4 rows to the byte kernels and the
// heads of a query their inputs: integer products, exact. All other keys are decoded to floats.
// Both give the same bits for the same values. Keys are decoded once for all queries of a call.
// Immutable; any thread may call it with memory of its own.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cpu/dot/byte_kernels.h"
#include "backend/numerics.h"
#include "backend/page_format.h"
#include "base/types.h"

namespace fathom::cpu {

// Memory of the queries that are scored together.
struct IndexQueries {
  float* rotated = nullptr;  // [query][heads * dim]
  float* weights = nullptr;  // [query][heads]
  // The byte kernels' form.
  float* slots = nullptr;        // [query][heads][dim], see ByteSlot
  const void** heads = nullptr;  // [query][heads], where those are
};

// Memory of one thread.
struct IndexTile {
  float* entries = nullptr;      // [kTile][dim]
  float* transposed = nullptr;   // [dim][kTile]
  uint8_t* codes = nullptr;      // [2 * kMaxLanes * dim]
  float* code_scales = nullptr;  // [2 * kMaxLanes * dim / 32]
  float* dots = nullptr;         // [heads][2 * kMaxLanes]
};

class IndexScorer {
 public:
  IndexScorer(Numerics numerics, const PageView& keys, int num_heads, int dim,
              const IndexQueries& queries);

  // Rotates and rounds a query and its head weights, which become query `r`.
  void SetQuery(int64_t r, std::span<const float> q, std::span<const float> cos_sin,
                std::span<const float> head_weights) const;

  // scores[r * stride + j] for queries r in [first, last) and keys j in [from, to) that the query
  // at position start + r sees.
  void Score(const BlockTable& table, int64_t from, int64_t to, Position start, int64_t first,
             int64_t last, const IndexTile& tile, float* scores, int64_t stride) const;

  // What a pair of query and key costs, in multiplications of fp32 numbers.
  [[nodiscard]] int64_t work() const { return int64_t{num_heads_} * dim_ / (bytes_ ? 8 : 1); }

 private:
  void ScoreBytes(const BlockTable& table, int64_t from, int64_t to, Position start, int64_t first,
                  int64_t last, const IndexTile& tile, float* scores, int64_t stride) const;
  // Keys from `j` on as panel `p`, at most to `end` and at most to the end of their page; returns
  // how many.
  int PackKeys(const BlockTable& table, int64_t j, int64_t end, int p, const IndexTile& tile) const;

  const bool official_;
  const bool bytes_;
  const PageView& keys_;
  const int num_heads_;
  const int dim_;
  const IndexQueries queries_;
};

}  // namespace fathom::cpu
