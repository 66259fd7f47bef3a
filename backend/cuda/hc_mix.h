// The products of a step's rows with the matrix of a hyper-connection, for HcPreNorm and Head.
// Needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/state.h"

namespace fathom::cuda {

// {fn[0] . X, .., fn[count - 1] . X, X . X} in double, where X are the `size` values of row rows[i]
// of hc (row i where `rows` is null): their sums over parts of the columns. Rows do not depend on
// each other.
struct MixArgs {
  const float* hc = nullptr;
  const int* rows = nullptr;
  int64_t n = 0;
  const float* fn = nullptr;  // [count][size]
  int count = 0;
  int64_t size = 0;
  double* sums = nullptr;  // [n][kMixParts][count + 1]
};
Status SumMixes(const MixArgs& args, cudaStream_t stream);

}  // namespace fathom::cuda
