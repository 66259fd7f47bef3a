// Activations: the named buffers of one forward pass, laid out once for the largest step, in the
// memory of the backend that computes them.
#pragma once

#include <array>
#include <vector>

#include "backend/device_memory.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "base/types.h"
#include "checkpoint/config.h"

namespace fathom {

// Each view has room for `max_rows` rows; a step takes First(n). Owned by the model, used by one
// step at a time. Moving keeps the views.
struct Activations {
  // kOutOfMemory, naming the step, where there is no room. `memory` must outlive them.
  static Result<Activations> Create(const ModelConfig& config, int max_rows, DeviceMemory& memory);

  // What Create asks of the memory.
  static int64_t Bytes(const ModelConfig& config, int max_rows);

  TensorView<float> hc;               // [n, hc_mult, D] residual stream
  TensorView<float> x;                // [n, D] a sub-layer's input
  TensorView<float> sublayer_out;     // [n, D]
  TensorView<float> post, comb;       // [n, hc], [n, hc, hc]
  TensorView<float> q_lora;           // [n, QL]
  TensorView<float> kv;               // [n, d]
  TensorView<float> step_kv;          // [n, d] window entries of the step's own rows
  TensorView<float> q, attn_o;        // [n, H, d]
  TensorView<float> o_lora;           // [n, G * OL]
  TensorView<float> index_q;          // [n, Hi, di]
  TensorView<float> index_weights;    // [n, Hi]
  TensorView<int32_t> entries;        // [n, topk]
  TensorView<int32_t> num_entries;    // [n]
  TensorView<int32_t> experts;        // [n, K]
  TensorView<float> expert_weights;   // [n, K]
  TensorView<float> rope_plain;       // [n, rope / 2, 2], ratio-0 layers
  TensorView<float> rope_compressed;  // [n, rope / 2, 2], layers with a compressor
  // By ratio, as StepPlan::anchors: [entries ending in the step, rope / 2, 2], and the positions.
  std::array<TensorView<float>, 2> rope_anchors;
  std::array<std::vector<Position>, 2> anchors;

  // Compressor rows are as wide as the layer's kind needs: [n, width] over a shared buffer. Those
  // of index keys have one of their own.
  [[nodiscard]] TensorView<float> KvRows(bool index_side, int n, int width) {
    return {index_side ? index_kv_rows_ : kv_rows_, n, width};
  }
  [[nodiscard]] TensorView<float> ScoreRows(bool index_side, int n, int width) {
    return {index_side ? index_score_rows_ : score_rows_, n, width};
  }

  [[nodiscard]] int max_rows() const { return static_cast<int>(x.dim(0)); }

 private:
  // Places the views from `base` on, or with nullptr only adds up; the bytes of all.
  int64_t LayOut(const ModelConfig& config, int max_rows, std::byte* base);

  DeviceBuffer buffer_;
  float* kv_rows_ = nullptr;
  float* score_rows_ = nullptr;
  float* index_kv_rows_ = nullptr;
  float* index_score_rows_ = nullptr;
};

}  // namespace fathom
