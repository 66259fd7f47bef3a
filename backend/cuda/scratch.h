// The CUDA backend's scratch memory: what operations share, laid out from the limits of a run.
//
// Needs no CUDA: whoever plans memory asks for its size (engine/memory_plan.h) in every build.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/memory_layout.h"
#include "backend/ops/hc_pre_norm.h"

namespace fathom::cuda {

// What kernels find out and the host asks for at Synchronize. Only the first finding is kept.
struct DeviceReport {
  enum Finding : int32_t { kNone, kHashTable, kExpertId };
  int32_t finding = kNone;
  int32_t token = 0;  // id of kHashTable, row of kExpertId
  int64_t value = 0;  // the expert id that is none
  int64_t limit = 0;  // number of experts
  unsigned long long inexact_entries = 0;
};

// One token of one expert: which row of x, with which weight, and where its results go.
struct ExpertItem {
  int32_t row = 0;
  int32_t slot = 0;  // row * (experts per token + 1) + place among the row's experts
  float weight = 0.0f;
};

// Channels of the attention heads that have tile kernels.
inline constexpr int kTileHeadDim = 512;

// Parts of a row's columns that products of hyper-connections are summed in, to keep more of the
// GPU busy.
inline constexpr int kMixParts = 4;

// Items of one expert that a block takes together.
struct ExpertTile {
  int32_t expert = 0;
  int32_t first = 0;  // item
  int32_t count = 0;
};

// Whether experts in memory of the host are brought to the device for a step of `rows` (chosen of
// num_experts by each), by one copy beside other work. In place a tile reads its expert over the
// bus: from half a full tile per expert on, some need several. Steps of few rows read what they
// chose and no more; nothing is done for them.
inline constexpr int kStagedRows = 64;   // more than
inline constexpr int kStagedItems = 32;  // of an expert, in the mean
constexpr bool StagesExperts(int64_t rows, int64_t chosen, int64_t num_experts) {
  return rows > kStagedRows && num_experts > 0 && rows * chosen >= kStagedItems * num_experts;
}

// Pointers into one allocation; sizes are functions of the limits.
struct Scratch {
  DeviceReport* report = nullptr;
  int rows = 0;                // min(max_rows, CudaOptions::scratch_rows)
  int64_t input_cols = 0;      // max_cols
  float* inputs = nullptr;     // [rows][input_cols], inputs of a product
  int64_t packed_cols = 0;     // max(2 * max_cols, max_heads * max_head_dim)
  uint16_t* packed = nullptr;  // [rows][packed_cols], of tile kernels
  // Mixture of experts: items sorted by expert, then intermediate and final values by slot.
  int32_t* expert_begin = nullptr;     // [max_experts + 2]
  ExpertItem* expert_items = nullptr;  // [rows * (max_experts_per_token + 1)]
  ExpertTile* expert_tiles = nullptr;  // [slots]
  int32_t* num_expert_tiles = nullptr;
  ExpertWeights* expert_tables = nullptr;  // [num_expert_layers][max_experts + 1], of AddExperts
  uint8_t* experts_on_host = nullptr;      // the same, 1 for those in memory of the host
  // Experts that come from the host: as many as a layer has there, and tables that have them here.
  std::byte* staged_experts = nullptr;     // [host_experts_per_layer][host_expert_bytes]
  ExpertWeights* staged_tables = nullptr;  // as expert_tables
  float* hidden = nullptr;                 // [slots][max_expert_width]; bf16 for tile kernels
  uint16_t* expert_out = nullptr;          // [slots][max_cols], bf16
  // Attention: what splits of keys sum to, of so many (row, split, head)s; 0 for other head sizes
  // than kTileHeadDim.
  int64_t attention_splits = 0;
  float* attention_partial = nullptr;  // [attention_splits][kTileHeadDim]
  float* attention_stats = nullptr;    // [attention_splits][2]
  uint16_t* step_keys = nullptr;       // [max_rows][kTileHeadDim], bf16
  float* router_logits = nullptr;      // [rows][max_experts]
  double* mixes = nullptr;             // [rows][kMixParts][products of a hyper-connection + 1]
  // Indexer.
  int index_rows = 0;              // rows that are scored at a time
  int64_t max_entries = 0;         // compressed entries of a sequence
  float* index_queries = nullptr;  // [index_rows][max_heads * max_head_dim]
  float* index_weights = nullptr;  // [index_rows][max_heads]
  float* index_scores = nullptr;   // [index_rows][max_entries]
};

// Places the scratch of a run from `base` on; with nullptr it is measured only. The layout says how
// many bytes that are, and whether they are too many to count.
inline MemoryLayout LayOutScratch(const BackendLimits& l, const CudaOptions& options,
                                  std::byte* base, Scratch& s) {
  // Scores of so many rows at a time that they stay around 64 MiB.
  constexpr int64_t kScoreBytes = int64_t{64} << 20;
  constexpr int64_t kMaxIndexRows = 256;
  // A grid's second dimension has 16 bits, and an item per row and expert of it takes one.
  const int most_rows = std::max(1, 65535 / (l.max_experts_per_token + 1));
  s.rows = std::clamp(std::min(l.max_rows, options.scratch_rows), 1, most_rows);
  s.max_entries = l.max_positions / 4 + 1;
  s.index_rows = static_cast<int>(std::clamp<int64_t>(
      kScoreBytes / (s.max_entries * 4), 1, std::min<int64_t>(kMaxIndexRows, l.max_rows)));
  constexpr int64_t kPartialBytes = int64_t{64} << 20;
  s.attention_splits = l.max_head_dim >= kTileHeadDim ? kPartialBytes / (kTileHeadDim * 4) : 0;
  MemoryLayout sum(DeviceMemory::kAlignment);
  const auto place = [&](auto*& array, int64_t rows, int64_t row_elements) {
    using T = std::remove_reference_t<decltype(*array)>;
    const int64_t offset = sum.Add<T>(rows, row_elements);
    array = base == nullptr ? nullptr : reinterpret_cast<T*>(base + offset);
  };
  const int64_t slots = s.rows * (int64_t{l.max_experts_per_token} + 1);
  place(s.report, 1, 1);
  s.input_cols = l.max_cols;
  s.packed_cols = std::max<int64_t>(int64_t{2} * l.max_cols, int64_t{l.max_heads} * l.max_head_dim);
  place(s.inputs, s.rows, s.input_cols);
  place(s.packed, s.rows, s.packed_cols);
  place(s.expert_begin, 1, int64_t{l.max_experts} + 2);
  place(s.expert_items, 1, slots);
  place(s.expert_tiles, 1, slots);
  place(s.num_expert_tiles, 1, 1);
  place(s.expert_tables, l.num_expert_layers, int64_t{l.max_experts} + 1);
  place(s.experts_on_host, l.num_expert_layers, int64_t{l.max_experts} + 1);
  const bool staged = l.host_experts_per_layer > 0 &&
                      StagesExperts(l.max_rows, l.max_experts_per_token, l.max_experts);
  place(s.staged_experts, staged ? l.host_experts_per_layer : 0, l.host_expert_bytes);
  if (!staged) s.staged_experts = nullptr;
  place(s.staged_tables, staged ? l.num_expert_layers : 0, int64_t{l.max_experts} + 1);
  place(s.hidden, slots, l.max_expert_width);
  place(s.expert_out, slots, l.max_cols);
  place(s.attention_partial, s.attention_splits, kTileHeadDim);
  place(s.attention_stats, s.attention_splits, 2);
  place(s.step_keys, s.attention_splits > 0 ? l.max_rows : 0, kTileHeadDim);
  place(s.router_logits, s.rows, l.max_experts);
  place(s.mixes, s.rows, kMixParts * ((2 + kMaxHcMult) * kMaxHcMult + 1));
  place(s.index_queries, s.index_rows, int64_t{l.max_heads} * l.max_head_dim);
  place(s.index_weights, s.index_rows, l.max_heads);
  place(s.index_scores, s.index_rows, s.max_entries);
  return sum;
}

}  // namespace fathom::cuda
