// What the kernels of the indexer share.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/state.h"

namespace fathom::cuda {

// The args as the device sees them; rows of scratch are those of the step from `first_row` on.
struct IndexRows {
  const float* q;
  const float* head_weights;
  const float* cos_sin;
  int heads;
  int dim;
  int pairs;
  int topk;
  DevicePlan plan;
  PageView keys;
  int32_t* entries;
  int32_t* num_entries;
  int first_row;
  float* queries;        // [rows][heads * dim], or null for
  uint16_t* packed;      // as many in bf16, in the order of fragments.cuh
  float* query_weights;  // [rows][heads]
  float* scores;         // [rows][score_stride]
  int64_t score_stride;
};

// Candidates of a row if they have to be scored, else 0.
__device__ inline int EntriesToScore(const IndexRows& a, int row) {
  const RowOfStep where = a.plan.rows[row];
  if (where.sequence < 0) return 0;
  const int visible = VisibleEntries(where.position, 4);
  return visible > a.topk ? visible : 0;
}

// Whether the tile kernel takes it: 128 channels, heads by 16, keys that are not fp32.
bool HasIndexTiles(const IndexerTopkArgs& args);

// Scores of `count` rows with at most `most` entries, from packed queries; the same bits as from
// the others.
Status ScoreTiles(const IndexRows& rows, int count, int most, cudaStream_t stream);

}  // namespace fathom::cuda
