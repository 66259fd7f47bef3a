// See backend/ops/linear.h for the contract.
#include <algorithm>

#include "backend/cuda/products.h"
#include "backend/cuda/state.h"
#include "backend/cuda/tile_products.h"

namespace fathom {

Status CudaBackend::DoLinear(const LinearArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.EnterLane());
  const int64_t n = args.x.dim(0);
  const int64_t cols = args.x.dim(1);
  FATHOM_RETURN_IF_ERROR(Fits("linear: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("linear: columns", cols, state.limits.max_cols));
  const bool quantised = args.first.weight.quantised();
  const bool both = !args.second.weight.empty();
  const bool tiles = cuda::HasTiles(args.first.weight) &&
                     (!both || (cuda::HasTiles(args.second.weight) &&
                                args.second.weight.dtype == args.first.weight.dtype));
  const cuda::Lanes::Room lane = state.lanes.room();
  const int64_t rounds_of = tiles || quantised ? lane.rows : n;
  for (int64_t first = 0; first < n; first += rounds_of) {
    const int64_t count = std::min(rounds_of, n - first);
    cuda::ConstRows x = {args.x.data() + first * cols, count, cols};
    const auto rows_of = [&](const LinearOutput& y) -> cuda::Rows {
      const int64_t width = y.weight.rows;
      return {y.out.data() + first * width, count, width};
    };
    if (tiles) {
      uint16_t* packed = lane.packed;
      FATHOM_RETURN_IF_ERROR(cuda::PackRows(x, cols, quantised, packed, lane.stream));
      const cuda::TileOutput outputs[] = {{args.first.weight, rows_of(args.first)},
                                          {args.second.weight, rows_of(args.second)}};
      FATHOM_RETURN_IF_ERROR(cuda::MultiplyTiles({packed, count, cols},
                                                 std::span(outputs).first(both ? 2 : 1), 1,
                                                 args.round_output, lane.stream));
      continue;
    }
    if (quantised) {
      FATHOM_RETURN_IF_ERROR(
          cuda::QuantiseRows(x, static_cast<int>(cols), lane.inputs, lane.stream));
      x.data = lane.inputs;
    }
    for (const LinearOutput* y : {&args.first, &args.second}) {
      if (y->weight.empty()) continue;
      FATHOM_RETURN_IF_ERROR(
          cuda::Multiply(x, y->weight, 1, args.round_output, rows_of(*y), lane.stream));
    }
  }
  return OkStatus();
}

}  // namespace fathom
