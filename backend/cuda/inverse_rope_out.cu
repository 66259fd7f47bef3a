// See backend/ops/inverse_rope_out.h for the contract.
#include <algorithm>

#include "backend/cuda/inverse_rope.h"
#include "backend/cuda/products.h"
#include "backend/cuda/state.h"
#include "backend/cuda/tile_products.h"

namespace fathom {

Status CudaBackend::DoInverseRopeOut(const InverseRopeOutArgs& args) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const int64_t n = args.o.dim(0);
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: rows", n, state.limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: heads", args.o.dim(1), state.limits.max_heads));
  FATHOM_RETURN_IF_ERROR(
      Fits("inverse_rope_out: head dim", args.o.dim(2), state.limits.max_head_dim));
  const bool tiles = cuda::HasTiles(args.wo_a, args.groups);
  const int64_t width = args.out.dim(1);
  const int64_t at_a_time = state.lanes.room().rows;
  for (int64_t first = 0; first < n; first += at_a_time) {
    const int64_t count = std::min<int64_t>(at_a_time, n - first);
    const cuda::RotatedHeads heads = {args.o.row(first).data(),
                                      args.cos_sin.row(first).data(),
                                      count,
                                      static_cast<int>(args.o.dim(1)),
                                      static_cast<int>(args.o.dim(2)),
                                      static_cast<int>(args.cos_sin.dim(1))};
    const int64_t cols = heads.cols();
    const cuda::ConstRows rows = {heads.o, count, cols};
    const cuda::Rows out = {args.out.data() + first * width, count, width};
    if (tiles) {
      uint16_t* const packed = state.scratch.packed;
      FATHOM_RETURN_IF_ERROR(cuda::PackHeads(heads, args.quantise_input, packed, state.stream));
      const cuda::TileOutput output = {args.wo_a, out};
      FATHOM_RETURN_IF_ERROR(cuda::MultiplyTiles({packed, count, cols}, {&output, 1}, args.groups,
                                                 /*round=*/true, state.stream));
      continue;
    }
    FATHOM_RETURN_IF_ERROR(cuda::RotateHeadsBack(heads, state.stream));
    if (args.quantise_input) {
      // In place: each lane reads its columns before it writes them.
      FATHOM_RETURN_IF_ERROR(
          cuda::QuantiseRows(rows, static_cast<int>(cols), heads.o, state.stream));
    }
    FATHOM_RETURN_IF_ERROR(
        cuda::Multiply(rows, args.wo_a, args.groups, /*round=*/true, out, state.stream));
  }
  return OkStatus();
}

}  // namespace fathom
