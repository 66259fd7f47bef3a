// Chain: operations on whole tensors, a kernel each, as a framework without a compiler launches
// them: on every element, a mean, a maximum, a complex product.
//
// Elements are taken in pieces of up to 16 bytes, neighbours by neighbouring threads. Tensors have
// below 2^32 elements.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "backend/cuda/formats.cuh"
#include "backend/cuda/launch.cuh"

namespace fathom::cuda {

// Rows of a tensor, `stride` elements apart: a whole tensor or a slice of its last dimension.
template <typename T>
struct Slice {
  T* data = nullptr;
  int64_t n = 0;
  int64_t width = 0;
  int64_t stride = 0;
};
template <typename T>
Slice<T> Whole(T* data, int64_t n, int64_t width) {
  return {data, n, width, width};
}

template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Piece {
  T v[kSize];
};

// out[row][column] = op(in[row][column], row, column). May be in place.
template <int kSize, typename In, typename Out, typename Op>
__global__ void __launch_bounds__(kBlock)
    ElementsKernel(Slice<const In> in, Slice<Out> out, unsigned pieces_per_row, unsigned pieces,
                   Op op) {
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= pieces) return;
  const unsigned row = i / pieces_per_row;
  const unsigned column = i % pieces_per_row * kSize;
  const auto x =
      *reinterpret_cast<const Piece<In, kSize>*>(in.data + int64_t{row} * in.stride + column);
  Piece<Out, kSize> y;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    y.v[k] = op(x.v[k], row, column + static_cast<unsigned>(k));
  }
  *reinterpret_cast<Piece<Out, kSize>*>(out.data + int64_t{row} * out.stride + column) = y;
}

// What ElementsKernel does to an element.
namespace element {

struct Same {
  __device__ float operator()(float x, unsigned, unsigned) const { return x; }
};
struct Square {
  __device__ float operator()(float x, unsigned, unsigned) const { return x * x; }
};
struct Absolute {
  __device__ float operator()(float x, unsigned, unsigned) const { return fabsf(x); }
};
struct InverseRoot {
  __device__ float operator()(float x, unsigned, unsigned) const { return 1.0f / sqrtf(x); }
};
struct Plus {
  float term;
  __device__ float operator()(float x, unsigned, unsigned) const { return x + term; }
};
struct Times {
  float factor;
  __device__ float operator()(float x, unsigned, unsigned) const { return x * factor; }
};
struct TimesOfRow {
  const float* factors;
  __device__ float operator()(float x, unsigned row, unsigned) const { return x * factors[row]; }
};
struct TimesOfColumn {
  const float* factors;
  __device__ float operator()(float x, unsigned, unsigned column) const {
    return x * factors[column];
  }
};
struct ByOfRow {
  const float* divisors;
  __device__ float operator()(float x, unsigned row, unsigned) const { return x / divisors[row]; }
};
struct AtLeast {
  float least;
  __device__ float operator()(float x, unsigned, unsigned) const { return fmaxf(x, least); }
};
struct Within {
  float limit;
  __device__ float operator()(float x, unsigned, unsigned) const {
    return x > limit ? limit : (x < -limit ? -limit : x);  // NaN stays
  }
};
struct ToCode {
  __device__ uint8_t operator()(float x, unsigned, unsigned) const { return ToE4m3(x); }
};
struct FromCode {
  __device__ float operator()(uint8_t code, unsigned, unsigned) const { return FromE4m3(code); }
};
struct PlusBits {
  uint32_t term;
  __device__ uint32_t operator()(uint32_t x, unsigned, unsigned) const { return x + term; }
};
struct RightBits {
  int by;
  __device__ uint32_t operator()(uint32_t x, unsigned, unsigned) const { return x >> by; }
};
struct LeftBits {
  int by;
  __device__ uint32_t operator()(uint32_t x, unsigned, unsigned) const { return x << by; }
};
struct ToByte {
  __device__ uint8_t operator()(uint32_t x, unsigned, unsigned) const {
    return static_cast<uint8_t>(x);
  }
};
// An operation whose result is a tensor of bf16.
template <typename Op>
struct InBf16 {
  Op op;
  __device__ float operator()(float x, unsigned row, unsigned column) const {
    return RoundBf16(op(x, row, column));
  }
};
template <typename Op>
InBf16(Op) -> InBf16<Op>;

}  // namespace element

// Keeps launches in their order, for many runs. Operations on nothing are no kernels.
class Chain {
 public:
  explicit Chain(cudaStream_t stream) : stream_(stream) {}

  // Blocks of kBlock threads.
  template <typename... Parameters, typename... Args>
  void Add(void (*kernel)(Parameters...), unsigned blocks, Args... args) {
    if (blocks == 0) return;
    launches_.push_back([stream = stream_, kernel, blocks, args...] {
      Launch(kernel, blocks, kBlock, 0, stream, args...);
      return LaunchStatus("unfused: tensor operation");
    });
  }

  // The same rows and columns on both sides.
  template <typename In, typename Out, typename Op>
  void Elements(const Slice<In>& in, const Slice<Out>& out, Op op) {
    const Slice<const In> from = {in.data, in.n, in.width, in.stride};
    if (Divides(from, 4) && Divides(out, 4)) return AddElements<4>(from, out, op);
    if (Divides(from, 2) && Divides(out, 2)) return AddElements<2>(from, out, op);
    AddElements<1>(from, out, op);
  }

  // Of each row of x [rows, width]. Sums are in double, where a framework would have floats: the
  // bits are to be those of the fused operations. MeanOfRows adds in their order; for heads that
  // does not matter, since rounded squares add up exactly while they are within 2^36 of each other.
  void MeanOfHeads(const float* x, int64_t rows, int width, float* mean);  // bf16
  void MeanOfRows(const float* x, int64_t rows, int width, float* mean);   // float
  void Largest(const float* x, int64_t rows, int width, float* largest);   // none is negative

  // Rows of `pairs` complex numbers times those of a table; `share` rows in a row have the same.
  void ComplexProduct(const float* x, const float* table, int64_t rows, int64_t pairs,
                      int64_t share, float* out);

  Status Run() const {
    for (const std::function<Status()>& launch : launches_) FATHOM_RETURN_IF_ERROR(launch());
    return OkStatus();
  }
  [[nodiscard]] int num_kernels() const { return static_cast<int>(launches_.size()); }

 private:
  template <typename T>
  static bool Divides(const Slice<T>& s, int64_t size) {
    const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(s.data));
    return s.width % size == 0 && s.stride % size == 0 &&
           at % (size * static_cast<int64_t>(sizeof(T))) == 0;
  }
  template <int kSize, typename In, typename Out, typename Op>
  void AddElements(const Slice<const In>& in, const Slice<Out>& out, Op op) {
    const int64_t pieces = in.n * in.width / kSize;
    Add(ElementsKernel<kSize, In, Out, Op>, Blocks(pieces, kBlock), in, out,
        static_cast<unsigned>(in.width / kSize), static_cast<unsigned>(pieces), op);
  }

  const cudaStream_t stream_;
  std::vector<std::function<Status()>> launches_;
};

}  // namespace fathom::cuda
