// ModelWeights: the checkpoint's tensors as typed handles, one struct per block of the
// architecture.
//
// Matrices and fp32 tensors are views into the checkpoint's mapping; the small bf16 vectors (norm
// weights) are widened to fp32 once and owned here. MoveTo() brings all of them to where a device
// reads them. Immutable after that; valid as long as the checkpoint, or the memory.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "backend/device_memory.h"
#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "checkpoint/checkpoint.h"
#include "model/expert_placement.h"
#include "model/weight_copy.h"

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

// Where a device's weights lie, and how they get there.
struct WeightDestination {
  DeviceMemory& device;  // Backend::memory()
  // Of the host, read by the device in place (backend/pinned_memory.h); needed for experts that the
  // placement has there.
  DeviceMemory* pinned = nullptr;
  ExpertPlacement placement;
};

class ModelWeights {
 public:
  static Result<std::unique_ptr<ModelWeights>> Build(const Checkpoint& checkpoint);

  // Brings the tensors to their destination and points the handles there; from then on the
  // checkpoint may go. The device's are in one buffer, the host's in a few of at most
  // kMaxPinnedBytes, one tensor after the other. MTP blocks, which no step uses, stay behind: `mtp`
  // is empty afterwards. kOutOfMemory, with the sizes and before anything is copied, where there is
  // no room. After an error the weights are of no use.
  Status MoveTo(const WeightDestination& destination, WeightWriter& writer,
                const LoadProgress& progress);
  // Bytes on the device and in pinned memory; 0 where the weights are the checkpoint's.
  [[nodiscard]] int64_t moved_bytes() const { return moved_.bytes(); }
  [[nodiscard]] int64_t pinned_bytes() const;
  static constexpr int64_t kMaxPinnedBytes = int64_t{8} << 30;

  WeightView embed;  // bf16 [V, D]
  WeightView head;   // bf16 [V, D]
  TensorView<const float> norm;
  HyperConnectionWeights hc_head;
  std::vector<LayerWeights> layers;
  std::vector<MtpWeights> mtp;  // empty when the checkpoint has none

 private:
  std::deque<std::vector<float>> widened_;  // stable addresses
  DeviceBuffer moved_;
  std::vector<DeviceBuffer> pinned_;
  friend class WeightReader;
};

}  // namespace fathom
