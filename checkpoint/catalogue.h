// The catalogue: name, dtype and shape of every tensor that a geometry needs.
//
// Checkpoint::Open compares files with it; tools use it to count bytes without files.
// Pure functions of the config.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/config.h"

namespace fathom {

struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  [[nodiscard]] uint64_t bytes() const;
};

// Routed experts of a layer are alike and many: who only counts asks for the first few of them.
inline constexpr int kAllExperts = std::numeric_limits<int>::max();

// Top level and main layers, in the order of the layers; at most `max_experts` per layer.
std::vector<ExpectedTensor> ExpectedMainTensors(const ModelConfig& config,
                                                int max_experts = kAllExperts);
// One main layer.
std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& config, int layer,
                                                 int max_experts = kAllExperts);
// Block `block` of config.mtp_compress_ratios: a scored layer and the tensors that feed it.
std::vector<ExpectedTensor> ExpectedMtpTensors(const ModelConfig& config, int block,
                                               int max_experts = kAllExperts);
// Main tensors, then those of all MTP blocks that the config announces.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config);

}  // namespace fathom
