#include "backend/cuda/inverse_rope.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/products.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/tile_products.h"
#include "backend/cuda/tiles.cuh"

namespace fathom::cuda {
namespace {

// A thread per pair of a head.
__global__ void __launch_bounds__(kBlock) RotateKernel(RotatedHeads a) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const int64_t head = i / a.pairs;  // of all rows
  const int64_t row = head / a.num;
  if (row >= a.n) return;
  const int64_t pair = i % a.pairs;
  RotatePair(a.o + head * a.dim + a.dim - 2 * a.pairs + 2 * pair,
             a.cos_sin + 2 * (row * a.pairs + pair), -1.0f);
}

// A warp per kGroups groups of 128 columns, whose loads are under way together; what is rotated
// stays in registers.
template <int kGroups>
__global__ void __launch_bounds__(kBlock)
    PackHeadsKernel(RotatedHeads a, bool quantise, uint16_t* out) {
  // Divisions of 64 bits would take longer than the rest.
  const auto groups = static_cast<unsigned>(a.cols() / 128);  // of a row
  const unsigned all = static_cast<unsigned>(a.n) * groups;
  const unsigned first = (blockIdx.x * kWarps + static_cast<unsigned>(WarpIndex())) * kGroups;
  Four fours[kGroups];
#pragma unroll
  for (unsigned g = 0; g < kGroups; ++g) {
    if (first + g < all) fours[g] = LoadFour(a.o + int64_t{first + g} * 128 + 4 * Lane());
  }
  unsigned row = first / groups;
  unsigned of_row = first % groups;
  int of_head = (static_cast<int>(of_row) * 128 + 4 * Lane()) % a.dim;
#pragma unroll
  for (unsigned g = 0; g < kGroups; ++g) {
    if (first + g >= all) return;
    // Four columns are of one head, and so are both of a pair.
    const int rotated = of_head - (a.dim - 2 * a.pairs);
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      if (rotated + k < 0) continue;
      RotatePair(fours[g].v + k, a.cos_sin + int64_t{2} * row * a.pairs + rotated + k, -1.0f);
    }
    PackGroup(fours[g].v, quantise, out + int64_t{first + g} * 128);
    // Rows end with a head.
    for (of_head += 128; of_head >= a.dim;) of_head -= a.dim;
    if (++of_row == groups) {
      of_row = 0;
      ++row;
    }
  }
}

// Groups of a warp, where there are enough of them that each of an H200's 132 multiprocessors has
// 16 such warps.
constexpr int kManyGroups = 4;
constexpr int64_t kGroupsOfManyRows = int64_t{132} * 16 * kManyGroups;

}  // namespace

Status RotateHeadsBack(const RotatedHeads& heads, cudaStream_t stream) {
  const int64_t rotations = heads.n * heads.num * heads.pairs;
  if (rotations == 0) return OkStatus();
  Launch(RotateKernel, Blocks(rotations, kBlock), kBlock, 0, stream, heads);
  return LaunchStatus("rotation of heads");
}

Status PackHeads(const RotatedHeads& heads, bool quantise, uint16_t* out, cudaStream_t stream) {
  if (heads.n == 0) return OkStatus();
  if (heads.dim % 4 != 0) {
    FATHOM_RETURN_IF_ERROR(RotateHeadsBack(heads, stream));
    return PackRows({heads.o, heads.n, heads.cols()}, heads.cols(), quantise, out, stream);
  }
  const int64_t groups = heads.n * (heads.cols() / 128);
  if (groups >= kGroupsOfManyRows) {
    Launch(PackHeadsKernel<kManyGroups>, Blocks(groups, kWarps * kManyGroups), kBlock, 0, stream,
           heads, quantise, out);
  } else {
    Launch(PackHeadsKernel<1>, Blocks(groups, kWarps), kBlock, 0, stream, heads, quantise, out);
  }
  return LaunchStatus("packing of heads");
}

}  // namespace fathom::cuda
