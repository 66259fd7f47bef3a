#include "backend/cuda/products.h"

#include <algorithm>
#include <string>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/products.cuh"
#include "backend/cuda/status.h"

namespace fathom::cuda {
namespace {

// A warp per row of the weight and kInputs rows of x.
template <DType kType>
__global__ void __launch_bounds__(kBlock)
    MultiplyKernel(ConstRows x, WeightView weight, int rows_per_group, bool round, Rows out) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + WarpIndex();
  const int64_t first = int64_t{blockIdx.y} * kInputs;
  if (row >= weight.rows) return;
  const int count = static_cast<int>(min(int64_t{kInputs}, x.n - first));
  const float* inputs[kInputs];
#pragma unroll
  for (int t = 0; t < kInputs; ++t) {
    inputs[t] =
        x.data + (first + min(t, count - 1)) * x.stride + row / rows_per_group * weight.cols;
  }
  float sums[kInputs];
  MultiplyRow<kType>(weight, row, inputs, count, sums);
#pragma unroll
  for (int t = 0; t < kInputs; ++t) {
    if (t < count && Lane() == t) {
      out.data[(first + t) * out.stride + row] = round ? RoundBf16(sums[t]) : sums[t];
    }
  }
}

// A warp per group of 128.
__global__ void __launch_bounds__(kBlock) QuantiseKernel(ConstRows x, int cols, float* out) {
  const int64_t groups = cols / 128;
  const int64_t i = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (i >= x.n * groups) return;
  const int64_t row = i / groups;
  const int64_t group = i % groups;
  SimulateE4m3Group(x.data + row * x.stride + group * 128, 128, out + row * cols + group * 128);
}

}  // namespace

Status Multiply(const ConstRows& x, const WeightView& weight, int groups, bool round, Rows out,
                cudaStream_t stream) {
  if (x.n == 0 || weight.rows == 0) return OkStatus();
  const int per_group = weight.rows / groups;
  // The second dimension of a grid has 16 bits.
  constexpr int64_t kMaxRows = int64_t{65535} * kInputs;
  for (int64_t first = 0; first < x.n; first += kMaxRows) {
    const ConstRows in = x.Slice(first, std::min(kMaxRows, x.n - first));
    const Rows to = {out.data + first * out.stride, in.n, out.stride};
    const dim3 grid(Blocks(weight.rows, kWarps), Blocks(in.n, kInputs));
    switch (weight.dtype) {
      case DType::kF8E4M3:
        Launch(MultiplyKernel<DType::kF8E4M3>, grid, kBlock, 0, stream, in, weight, per_group,
               round, to);
        break;
      case DType::kI8:
        Launch(MultiplyKernel<DType::kI8>, grid, kBlock, 0, stream, in, weight, per_group, round,
               to);
        break;
      case DType::kBF16:
        Launch(MultiplyKernel<DType::kBF16>, grid, kBlock, 0, stream, in, weight, per_group, round,
               to);
        break;
      case DType::kF32:
        Launch(MultiplyKernel<DType::kF32>, grid, kBlock, 0, stream, in, weight, per_group, round,
               to);
        break;
      default:
        return InvalidArgument("weights are fp8, fp4, bf16 or fp32, not " +
                               std::string(DTypeName(weight.dtype)));
    }
    FATHOM_RETURN_IF_ERROR(LaunchStatus("product"));
  }
  return OkStatus();
}

Status QuantiseRows(const ConstRows& x, int cols, float* out, cudaStream_t stream) {
  if (x.n == 0) return OkStatus();
  Launch(QuantiseKernel, Blocks(x.n * (cols / 128), kWarps), kBlock, 0, stream, x, cols, out);
  return LaunchStatus("quantise rows");
}

}  // namespace fathom::cuda
