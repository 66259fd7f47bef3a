// The catalogue: name, dtype and shape of every tensor that a geometry needs.
//
// Checkpoint::Open compares files with it; tools use it to count bytes without files.
// Pure functions of the config.
#pragma once

#include <cstdint>
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

// Top level and main layers, in the order of the layers.
std::vector<ExpectedTensor> ExpectedMainTensors(const ModelConfig& config);
// Block `block` of config.mtp_compress_ratios: a scored layer and the tensors that feed it.
std::vector<ExpectedTensor> ExpectedMtpTensors(const ModelConfig& config, int block);
// Main tensors, then those of all MTP blocks that the config announces.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config);

}  // namespace fathom
