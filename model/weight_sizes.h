// How many bytes a model's weights take in a backend's memory, from the geometry alone.
//
// Pure functions. ModelWeights::MoveTo lays out the same bytes; tests/device holds both together.
#pragma once

#include <cstdint>

#include "backend/device_memory.h"
#include "checkpoint/config.h"

namespace fathom {

// What a tensor takes there: it begins at a multiple of DeviceMemory::kAlignment.
constexpr int64_t AlignedBytes(int64_t bytes) {
  constexpr int64_t kAlignment = DeviceMemory::kAlignment;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

struct WeightSizes {
  int64_t fixed_bytes = 0;   // all of the main layers but routed experts; norms as fp32
  int64_t expert_bytes = 0;  // one routed expert; they are all alike
  int64_t num_experts = 0;   // routed ones of all main layers

  [[nodiscard]] int64_t total() const { return fixed_bytes + num_experts * expert_bytes; }
};

// Without MTP blocks, which no step uses.
WeightSizes WeightSizesOf(const ModelConfig& config);

}  // namespace fathom
