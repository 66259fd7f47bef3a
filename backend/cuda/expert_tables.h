// ExpertTables: the experts that the backend was told of, where kernels read which they are.
//
// An operation on experts told of needs nothing of the host: their table is on the device, and what
// it has to know of all of them together was looked at once. Single-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/scratch.h"
#include "backend/device_memory.h"
#include "backend/weights.h"

namespace fathom::cuda {

// What the kernels of a mixture need to know of all its experts.
struct ExpertShape {
  int width = 0;           // most rows of a w1
  bool quantised = false;  // some take quantised inputs
  bool tiles = false;      // the tile kernels take all of them
};

// kInvalidArgument where an expert's w1 and w3 take inputs of two formats.
Result<ExpertShape> ShapeOf(std::span<const ExpertWeights> routed, const ExpertWeights& shared);

class ExpertTables {
 public:
  struct Layer {
    std::span<const ExpertWeights> routed;  // the host's, whose address names the layer
    ExpertWeights shared;
    ExpertShape shape;
    const ExpertWeights* table = nullptr;  // the device's: routed, then the shared one
  };

  // Forgets all; tables are in `scratch` from now on.
  void Reset(const BackendLimits& limits, const Scratch& scratch);
  // After all operations called before. kInvalidArgument for more layers or experts than the
  // limits, and as ShapeOf.
  Status Add(std::span<const ExpertWeights> routed, const ExpertWeights& shared,
             DeviceMemory& memory);
  // nullptr for others than those told of.
  [[nodiscard]] const Layer* Find(std::span<const ExpertWeights> routed,
                                  const ExpertWeights& shared) const;

 private:
  BackendLimits limits_;
  ExpertWeights* tables_ = nullptr;
  std::vector<Layer> layers_;
};

}  // namespace fathom::cuda
