// What the kernels of sparse attention share.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/state.h"
#include "backend/cuda/warp.cuh"

namespace fathom::cuda {

// The args as the device sees them.
struct AttentionRows {
  const float* q;
  const float* step_kv;
  const int32_t* entries;  // null: all visible ones
  const int32_t* num_entries;
  const float* sink;
  float* out;
  int heads;
  int dim;
  int window;
  int ratio;
  int topk;
  float scale;
  DevicePlan plan;
  PageView swa;
  PageView compressed;
  const BlockTable* swa_tables;
  const BlockTable* compressed_tables;
  // Of the tile kernels: what the splits of a row's keys sum to, [rows][splits][heads][dim], and
  // the maximum and the denominator of each, [rows][splits][heads][2].
  int first_row;
  int splits;
  float* partial;
  float* partial_stats;
  uint16_t* step_keys;  // step_kv in bf16
};

// The attended keys of one row: window entries, then compressed ones, both ascending.
struct KeyList {
  const AttentionRows& a;
  int row;
  RowOfStep where;
  SequenceRows rows;
  int first_position;
  int num_window;
  int num_compressed;

  __device__ KeyList(const AttentionRows& args, int row_index)
      : a(args), row(row_index), where(args.plan.rows[row_index]) {
    if (where.sequence < 0) return;
    rows = a.plan.sequences[where.sequence];
    first_position = max(0, where.position - a.window + 1);
    num_window = where.position - first_position + 1;
    num_compressed = 0;
    if (a.compressed.base != nullptr) {
      num_compressed =
          a.entries != nullptr ? a.num_entries[row] : VisibleEntries(where.position, a.ratio);
    }
  }
  [[nodiscard]] __device__ int size() const { return num_window + num_compressed; }

  // Where key i is: a row of step_kv, or an entry of a page.
  struct Place {
    int64_t step_row = -1;  // of step_kv
    bool compressed = false;
    EntryRef entry = {};
  };
  [[nodiscard]] __device__ Place PlaceOf(int i) const {
    if (i < num_window) {
      const Position position = first_position + i;
      if (position >= rows.start) {
        return {rows.first_row + (position - rows.start), false, {}};
      }
      return {-1, false, Locate(a.swa, a.swa_tables[where.sequence], position)};
    }
    const int place = i - num_window;
    const int entry = a.entries != nullptr ? a.entries[int64_t{row} * a.topk + place] : place;
    return {-1, true, Locate(a.compressed, a.compressed_tables[where.sequence], entry)};
  }
};

// Keys of a split: rows with longer lists have several, which are added in ascending order.
inline constexpr int kSplitKeys = 256;
constexpr int SplitsOf(int keys) { return (keys + kSplitKeys - 1) / kSplitKeys; }

// Whether the tile kernels take it: heads of 512 channels, fp8 or bf16 pages whose entries are read
// 16 bytes at a time.
bool HasAttentionTiles(const SparseAttentionArgs& args);

// step_keys of a step of n rows, before AttendTiles.
Status PackStepKeys(const AttentionRows& rows, int64_t n, cudaStream_t stream);

// Rows [first_row, first_row + n) of the step; `partial` has room for n rows of `splits`.
Status AttendTiles(const AttentionRows& rows, int n, cudaStream_t stream);

}  // namespace fathom::cuda
