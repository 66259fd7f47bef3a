// ModelWeights: the checkpoint's tensors as typed handles, one struct per block of the
// architecture.
//
// Matrices and fp32 tensors are views into the checkpoint's mapping; the small bf16 vectors (norm
// weights) are widened to fp32 once and owned here. Immutable after Build(); valid as long as the
// checkpoint.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "checkpoint/checkpoint.h"

namespace fathom {

struct HyperConnectionWeights {
  TensorView<const float> fn;     // [(2 + hc) * hc, hc * D]; head: [hc, hc * D]
  TensorView<const float> base;   // [(2 + hc) * hc]; head: [hc]
  TensorView<const float> scale;  // [3]; head: [1]
};

struct CompressorWeights {
  WeightView wkv, wgate;         // bf16 [coff * width, D]
  TensorView<const float> ape;   // [ratio, coff * width]
  TensorView<const float> norm;  // [width]
};

struct IndexerWeights {
  WeightView wq_b;          // fp8 [Hi * di, QL]
  WeightView weights_proj;  // bf16 [Hi, D]
  CompressorWeights compressor;
};

struct AttentionWeights {
  WeightView wq_a, wq_b, wkv, wo_a, wo_b;
  TensorView<const float> q_norm, kv_norm, sink;
  CompressorWeights compressor;  // ratio 4 and 128
  IndexerWeights indexer;        // ratio 4
};

struct FfnWeights {
  WeightView gate;                       // bf16 [E, D]
  TensorView<const float> bias;          // [E]; scored layers
  TensorView<const int64_t> hash_table;  // [vocab, K]; hash layers
  std::vector<ExpertWeights> routed;
  ExpertWeights shared;
};

struct LayerWeights {
  int ratio = 0;
  HyperConnectionWeights hc_attn, hc_ffn;
  TensorView<const float> attn_norm, ffn_norm;
  AttentionWeights attn;
  FfnWeights ffn;
};

// One multi-token-prediction block: a layer with its own projections and head mixing; it shares the
// main model's embedding and head matrices.
struct MtpWeights {
  WeightView e_proj, h_proj;
  TensorView<const float> enorm, hnorm, norm;
  HyperConnectionWeights hc_head;
  LayerWeights layer;
};

class ModelWeights {
 public:
  static Result<std::unique_ptr<ModelWeights>> Build(const Checkpoint& checkpoint);

  WeightView embed;  // bf16 [V, D]
  WeightView head;   // bf16 [V, D]
  TensorView<const float> norm;
  HyperConnectionWeights hc_head;
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;  // empty when the checkpoint has none

 private:
  std::deque<std::vector<float>> widened_;  // stable addresses
  friend class WeightReader;
};

}  // namespace fathom
