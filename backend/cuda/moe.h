// What the kernels of the mixture of experts share. Needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/state.h"

namespace fathom::cuda {

// The args as the device sees them, of some rows of the step.
struct MoeRows {
  const float* x;                // [n, dim]
  const float* quantised;        // x as quantised experts take it, where there are any
  const int32_t* ids;            // [n, chosen]
  const float* weights;          // [n, chosen]
  const ExpertWeights* experts;  // [num_experts], then the shared one
  int n;
  int chosen;
  int num_experts;
  int dim;
  int max_width;  // of any expert: elements of a row of `hidden`
  float limit;
  float* out;            // [n, dim]
  int32_t* begin;        // [num_experts + 2]: items of an expert
  ExpertItem* items;     // sorted by expert
  float* hidden;         // by slot, of the generic kernels
  uint16_t* expert_out;  // by slot, [dim] bf16
  // For the tile kernels; tile_inputs is 0 for the others.
  int tile_inputs;  // most items of a tile
  // Experts in memory of the host, whose tiles come first: what they wait for the bus, others
  // compute. Null where there are none.
  const uint8_t* on_host;
  ExpertTile* tiles;  // [num_tiles]
  int32_t* num_tiles;
  uint16_t* packed;         // [2, n, dim], inputs of w1 and w3; the second half is for many items
  uint16_t* packed_hidden;  // by slot, inputs of w2; where `hidden` is
  DeviceReport* report;
  int first_row;  // of the step, for the report
};

// Items of a tile at most, for a step of n rows; what is computed for an item does not depend on
// it.
int ExpertTileInputs(int n, int chosen, int num_experts);

// The products of quantised experts that all have tiles (tile_products.h), on the matrix unit.
// Items are grouped and inputs packed already.
Status MultiplyExpertTiles(const MoeRows& rows, cudaStream_t stream);

}  // namespace fathom::cuda
