// Products on the matrix unit (tiles.cuh), for weights whose sizes divide into its tiles. Needs the
// CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "backend/cuda/products.h"

namespace fathom::cuda {

// Inputs as the kernels take them: bf16, in the order of fragments.cuh within eight columns, rows
// one behind the other.
struct PackedRows {
  uint16_t* data = nullptr;  // MultiplyTiles may leave them in another order
  int64_t n = 0;
  int64_t cols = 0;  // of a row; a multiple of 128
};

// Whether the tile kernels take a matrix: fp8, fp4 or bf16, columns a multiple of 128, and 16-byte
// pieces of rows where 16-byte loads are allowed. With groups, 16 rows belong to one.
bool HasTiles(const WeightView& weight, int groups = 1);

// Rounds rows to bf16 in that order; to e4m3 in groups of 128 before that if `quantise`. `cols` is
// a multiple of 128; out has n rows of them.
Status PackRows(const ConstRows& x, int64_t cols, bool quantise, uint16_t* out,
                cudaStream_t stream);

struct TileOutput {
  WeightView weight;
  Rows out;
};

// Multiply, for one or two weights of one format and the same columns.
Status MultiplyTiles(const PackedRows& x, std::span<const TileOutput> outputs, int groups,
                     bool round, cudaStream_t stream);

// Multiply for inputs that are bf16 values: on the matrix unit where the weight has tiles, with
// `packed` for x.n rows of the inputs.
Status MultiplyBf16(const ConstRows& x, int64_t cols, const WeightView& weight, int groups,
                    bool round, Rows out, uint16_t* packed, cudaStream_t stream);

}  // namespace fathom::cuda
