// ExpertTables: the experts that the backend was told of, where kernels read which they are.
//
// An operation on experts told of needs nothing of the host: their table is on the device, and what
// it has to know of all of them together was looked at once. Experts in memory of the host have a
// second place, in device memory that all layers share, and their layer a second table that names
// it (expert_staging.h). Single-threaded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/scratch.h"
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

// Bytes that a step may bring from memory of the host.
struct StagedCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;
};

class ExpertTables {
 public:
  struct Layer {
    std::span<const ExpertWeights> routed;  // the host's, whose address names the layer
    ExpertWeights shared;
    ExpertShape shape;
    const ExpertWeights* table = nullptr;  // the device's: routed, then the shared one
    // Also there, 1 for those that the table has in memory of the host; null where there are none.
    const uint8_t* on_host = nullptr;
    // With experts of the host where the copies put them; null where there are none.
    const ExpertWeights* staged_table = nullptr;
    std::vector<StagedCopy> copies;
  };

  // Forgets all; tables are in `scratch` from now on.
  void Reset(const BackendLimits& limits, const Scratch& scratch);
  // After all operations called before. kInvalidArgument for more layers or experts than the
  // limits, and as ShapeOf. Routed experts in `pinned` get a second place as long as there is room.
  Status Add(std::span<const ExpertWeights> routed, const ExpertWeights& shared,
             DeviceMemory& memory, const PinnedMemory& pinned);
  // nullptr for others than those told of.
  [[nodiscard]] const Layer* Find(std::span<const ExpertWeights> routed,
                                  const ExpertWeights& shared) const;
  // The first of them with these routed experts.
  [[nodiscard]] const Layer* Find(std::span<const ExpertWeights> routed) const;

 private:
  BackendLimits limits_;
  Scratch scratch_;
  std::vector<Layer> layers_;
};

}  // namespace fathom::cuda
