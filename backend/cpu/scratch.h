// Scratch memory and loop helpers of CpuBackend's operations. Included by backend/cpu/*.cc only.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/products.h"
#include "backend/cpu/topk.h"

namespace fathom {

// Queries that share decoded window entries, and the entries that fit for them.
inline constexpr int kQueryBlock = 16;
inline constexpr int kWindowRows = 192;
// Queries whose index scores are in memory together.
inline constexpr int kIndexRows = 64;

// One allocation, cut into arrays; sizes are functions of the limits. Arrays named `thread_*` hold
// one part per thread.
struct CpuBackend::Scratch {
  template <typename T>
  class Array {
   public:
    [[nodiscard]] T* data() const { return data_; }
    // Part `i`, of a thread or a row.
    [[nodiscard]] T* part(int64_t i) const { return data_ + i * stride_; }

   private:
    friend struct Scratch;
    T* data_ = nullptr;
    int64_t stride_ = 0;
  };

  BackendLimits limits;
  int64_t max_entries = 0;     // compressed entries that an indexer may score
  int64_t score_capacity = 0;  // floats in index_scores

  // Inputs of products, see PrepareInput: as they are, as e4m3 values, as bytes of FP4 weights.
  Array<float> float_inputs;       // [max_rows][max_cols, rounded up]
  Array<float> e4m3_inputs;        // the same
  Array<float> byte_inputs;        // the same; slots
  Array<const float*> float_rows;  // [max_rows]
  Array<const float*> e4m3_rows;   // [max_rows]
  Array<const void*> byte_rows;    // [max_rows]
  Array<float> int8_inputs;        // [max_rows][max_cols, rounded up]; slots for int8 weights
  Array<const void*> int8_rows;    // [max_rows]
  Array<float> head_inputs;        // [max_rows][max_cols]
  Array<float> mixes;              // [max_rows][kMixStride] hyper-connection products
  Array<float> router_scores;      // [max_rows][max_experts, rounded up]
  Array<float> moe_hidden;         // [items][max_expert_width, rounded up]; floats or slots
  Array<const float*> item_rows;   // one per item: inputs of w1 and w3, then of w2
  Array<const void*> item_bytes;   // the same
  Array<float> moe_weights;        // one per item, see moe.cc
  Array<int32_t> moe_tokens;       // one per item
  Array<int32_t> moe_begin;        // [max_experts + 2]
  Array<int32_t> moe_active;       // [max_experts + 1]
  Array<int32_t> moe_by_size;      // [max_experts + 1]
  Array<float> index_queries;      // [kIndexRows][max_heads * max_head_dim]
  Array<float> index_weights;      // [kIndexRows][max_heads]
  Array<float> index_scores;       // [score_capacity]
  Array<float> thread_products;    // for cpu::Multiply
  Array<float> thread_sums;        // [kSumInputs][kSumStride]
  Array<float> thread_row;         // [max_cols, rounded up]
  Array<float> thread_window;      // [kWindowRows][max_head_dim]
  Array<float> thread_tile;        // [kTile][max_head_dim]
  Array<float> thread_softmax;     // [2][kQueryBlock][max_heads]

  static constexpr int kMixStride = 80;  // (2 + kMaxHcMult) * kMaxHcMult

  Array<float> index_slots;         // the same as bytes; see index_scorer.h
  Array<const void*> index_heads;   // [kIndexRows][max_heads]
  Array<uint8_t> thread_codes;      // [2 * kMaxLanes][max_head_dim]
  Array<float> thread_code_scales;  // [2 * kMaxLanes][max_head_dim / 32]
  Array<float> thread_dots;         // [max_heads + 1][2 * kMaxLanes]
  Array<int32_t> thread_list;       // [TopkListSize(max_entries)]
  Array<uint32_t> thread_keys;      // the same

  // kOutOfMemory when the sizes overflow or the memory cannot be had.
  Status Allocate(const BackendLimits& new_limits, int num_threads);

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
};

template <typename Body>
void CpuBackend::ForEach(int64_t n, int64_t work, const Body& body) {
  // A task is worth half a microsecond or more.
  constexpr int64_t kTaskWork = 16384;
  ForChunks(n, std::max<int64_t>(1, kTaskWork / std::max<int64_t>(1, work)), 0, n * work, body);
}

template <typename Body>
void CpuBackend::ForBlocks(int64_t n, int64_t work, int64_t bytes, int64_t group,
                           const Body& body) {
  // Neighbouring blocks of a weight in one task: the next one is on its way from memory to the core
  // that will use it. But every thread should get several tasks.
  constexpr int64_t kTaskBytes = int64_t{512} << 10;
  int64_t chunk =
      std::min(kTaskBytes / std::max<int64_t>(1, bytes), n / (int64_t{6} * pool_.num_threads()));
  while (chunk > 1 && group != 0 && group % chunk != 0) --chunk;
  ForChunks(n, std::max<int64_t>(1, chunk), group, n * work, body);
}

template <typename Body>
void CpuBackend::ForChunks(int64_t n, int64_t chunk, int64_t group, int64_t work,
                           const Body& body) {
  // A loop of less than about two microseconds is not shared at all: little would be won, and on a
  // busy machine another thread may be taken off its core in the middle of a task and keep
  // everybody waiting.
  constexpr int64_t kSharedWork = 131072;
  if (work <= kSharedWork) {
    for (int64_t i = 0; i < n; ++i) body(i, 0);
    return;
  }
  pool_.ParallelFor((n + chunk - 1) / chunk,
                    [&](int64_t task, int thread) {
                      const int64_t end = std::min(n, (task + 1) * chunk);
                      for (int64_t i = task * chunk; i < end; ++i) body(i, thread);
                    },
                    group / chunk);
}

template <typename Emit>
void CpuBackend::MultiplyRows(const cpu::RowRange& a, const cpu::RowRange& b,
                              const cpu::InputRows& x, int thread, const Emit& emit) {
  float* sums = scratch_->thread_sums.part(thread);
  for (int64_t first = 0; first < x.n; first += cpu::kSumInputs) {
    const int64_t count = std::min<int64_t>(cpu::kSumInputs, x.n - first);
    cpu::Multiply(a, b, x.Part(first, count), scratch_->thread_products.part(thread), sums);
    emit(first, static_cast<int>(count), sums);
  }
}

}  // namespace fathom
