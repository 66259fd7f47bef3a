// See backend/ops/linear.h for the contract.
#include <algorithm>

#include "backend/cuda/products.h"
#include "backend/cuda/state.h"

namespace fathom {

Status CudaBackend::DoLinear(const LinearArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.x.dim(0);
  const int64_t cols = args.x.dim(1);
  FATHOM_RETURN_IF_ERROR(Fits("linear: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("linear: columns", cols, state.limits.max_cols));
  const int64_t rounds_of = args.first.weight.quantised() ? state.scratch.rows : n;
  for (int64_t first = 0; first < n; first += rounds_of) {
    const int64_t count = std::min(rounds_of, n - first);
    cuda::ConstRows x = {args.x.data() + first * cols, count, cols};
    if (args.first.weight.quantised()) {
      FATHOM_RETURN_IF_ERROR(
          cuda::QuantiseRows(x, static_cast<int>(cols), state.scratch.inputs, state.stream));
      x.data = state.scratch.inputs;
    }
    for (const LinearOutput* y : {&args.first, &args.second}) {
      if (y->weight.empty()) continue;
      const int64_t width = y->weight.rows;
      FATHOM_RETURN_IF_ERROR(cuda::Multiply(x, y->weight, 1, args.round_output,
                                            {y->out.data() + first * width, count, width},
                                            state.stream));
    }
  }
  return OkStatus();
}

}  // namespace fathom
