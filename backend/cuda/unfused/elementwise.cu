#include "backend/cuda/unfused/elementwise.cuh"

namespace fathom::cuda {
namespace {

// A warp per row.
__global__ void __launch_bounds__(kBlock)
    MeanOfHeadsKernel(const float* x, int64_t rows, int width, float* mean) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (row >= rows) return;
  double sum = 0.0;
#pragma unroll 8
  for (int i = Lane(); i < width; i += kWarp) sum += static_cast<double>(x[row * width + i]);
  sum = WarpSum(sum);
  if (Lane() == 0) mean[row] = RoundBf16(static_cast<float>(sum / static_cast<double>(width)));
}

// A block per row.
__global__ void __launch_bounds__(kBlock) MeanOfRowsKernel(const float* x, int width, float* mean) {
  __shared__ double sums[kWarps];
  const float* const row = x + int64_t{blockIdx.x} * width;
  double sum = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kBlock) {
    sum += static_cast<double>(row[i]);
  }
  sum = BlockSum(sum, sums);
  if (threadIdx.x == 0) mean[blockIdx.x] = static_cast<float>(sum / static_cast<double>(width));
}

// A warp per row.
__global__ void __launch_bounds__(kBlock)
    LargestKernel(const float* x, int64_t rows, int width, float* largest) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (row >= rows) return;
  const float amax = GroupAmax(x + row * width, width);
  if (Lane() == 0) largest[row] = amax;
}

// A thread per number.
__global__ void __launch_bounds__(kBlock)
    ComplexProductKernel(const float2* x, const float2* table, unsigned pairs, unsigned share,
                         unsigned count, float2* out) {
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  const float2 a = x[i];
  const float2 b = table[i / pairs / share * pairs + i % pairs];
  out[i] = {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

}  // namespace

void Chain::MeanOfHeads(const float* x, int64_t rows, int width, float* mean) {
  Add(MeanOfHeadsKernel, Blocks(rows, kWarps), x, rows, width, mean);
}

void Chain::MeanOfRows(const float* x, int64_t rows, int width, float* mean) {
  Add(MeanOfRowsKernel, static_cast<unsigned>(rows), x, width, mean);
}

void Chain::Largest(const float* x, int64_t rows, int width, float* largest) {
  Add(LargestKernel, Blocks(rows, kWarps), x, rows, width, largest);
}

void Chain::ComplexProduct(const float* x, const float* table, int64_t rows, int64_t pairs,
                           int64_t share, float* out) {
  const int64_t count = rows * pairs;
  Add(ComplexProductKernel, Blocks(count, kBlock), reinterpret_cast<const float2*>(x),
      reinterpret_cast<const float2*>(table), static_cast<unsigned>(pairs),
      static_cast<unsigned>(share), static_cast<unsigned>(count), reinterpret_cast<float2*>(out));
}

}  // namespace fathom::cuda
