// Inventory: how many bytes and parameters each part of a model has, from the geometry alone.
//
// `fathom inspect` prints it, `fathom plan` sets it against memory. Pure functions of the config;
// for the published models the numbers equal the published totals to the byte (catalogue_test.cc,
// inventory_test.cc).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/config.h"

namespace fathom {

enum class Part {
  kRoutedExperts,
  kAttention,  // projections, compressors, indexers, their norms, sinks
  kSharedExperts,
  kEmbedding,
  kHead,
  kOther,  // hyper-connections, routers, hash tables, norms; MTP: also its two projections
};
inline constexpr int kNumParts = 6;
inline constexpr std::array<Part, kNumParts> kParts = {Part::kRoutedExperts, Part::kAttention,
                                                       Part::kSharedExperts, Part::kEmbedding,
                                                       Part::kHead,          Part::kOther};

// "routed experts", "attention", ...
std::string_view PartName(Part part);

// The part that a tensor belongs to, by its native name (checkpoint/names.h).
Part PartOf(std::string_view native_name);

// Bytes are those of the checkpoint, scales included: fp4 experts, fp8 matrices, bf16, fp32.
// Parameters are weights: scales and hash tables are none, a packed fp4 byte holds two.
struct PartBytes {
  Part part = Part::kOther;
  uint64_t main_bytes = 0;
  uint64_t mtp_bytes =
      0;  // of all MTP blocks in config.mtp_compress_ratios; 0 with a DSpark drafter
  uint64_t main_parameters = 0;
  uint64_t mtp_parameters = 0;
  // Main layers, what one decoded token needs: num_experts_per_token of the routed experts, one row
  // of the embedding and of each hash table, everything else.
  uint64_t bytes_per_token = 0;
  // The same in parameters, except that the embedding counts whole (as published numbers do).
  uint64_t active_parameters = 0;
};

// One entry per part, in the order of kParts.
std::vector<PartBytes> InventoryOf(const ModelConfig& config);

// Sums over the entries; `part` of the result has no meaning.
PartBytes Total(const std::vector<PartBytes>& parts);

struct DTypeTotal {
  DType dtype = DType::kF32;
  uint64_t num_tensors = 0;
  uint64_t bytes = 0;
};

// Tensors of the main layers and the MTP blocks by element type, largest first.
std::vector<DTypeTotal> DTypesOf(const ModelConfig& config);

// "0-1, odd 3-41": ascending layer numbers as runs.
std::string CompactLayers(const std::vector<int>& layers);

// Bytes of one main layer, as stored.
uint64_t LayerBytes(const ModelConfig& config, int layer);

}  // namespace fathom
