// See unfused.h and backend/ops/inverse_rope_out.h.
#include "backend/cuda/inverse_rope.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/products.cuh"
#include "backend/cuda/tiles.cuh"
#include "backend/cuda/unfused/access.h"
#include "backend/cuda/unfused/unfused.h"

namespace fathom::cuda {
namespace {

// A thread per pair of a head, in fp32.
__global__ void __launch_bounds__(kBlock) RotateKernel(RotatedHeads a) {
  const auto pairs = static_cast<unsigned>(a.pairs);
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  const unsigned head = i / pairs;
  const unsigned row = head / static_cast<unsigned>(a.num);
  if (row >= a.n) return;
  const unsigned pair = i % pairs;
  float* const x = a.o + int64_t{head + 1} * a.dim - 2 * int64_t{pairs - pair};
  const float* const cos_sin = a.cos_sin + 2 * int64_t{row * pairs + pair};
  const float c = cos_sin[0];
  const float s = -cos_sin[1];
  const float even = x[0];
  const float odd = x[1];
  x[0] = even * c - odd * s;
  x[1] = even * s + odd * c;
}

// A thread per rotated channel.
__global__ void __launch_bounds__(kBlock) RoundKernel(RotatedHeads a) {
  const auto channels = static_cast<unsigned>(2 * a.pairs);
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  const unsigned head = i / channels;
  if (head >= a.n * a.num) return;
  float* const x = a.o + int64_t{head + 1} * a.dim - channels + i % channels;
  *x = RoundBf16(*x);
}

// A warp per 128 columns.
__global__ void __launch_bounds__(kBlock)
    ScalesKernel(const float* o, int64_t groups, uint8_t* scales) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (i >= groups) return;
  const Four x = LoadFour(o + i * 128 + 4 * Lane());
  const float amax =
      fmaxf(fmaxf(fabsf(x.v[0]), fabsf(x.v[1])), fmaxf(fabsf(x.v[2]), fabsf(x.v[3])));
  const int e = E4m3Exponent(WarpMax(amax));
  if (Lane() == 0) scales[i] = ScaleByte(e);
}

// A warp per 128 columns.
__global__ void __launch_bounds__(kBlock)
    CodesKernel(const float* o, const uint8_t* scales, int64_t groups, uint16_t* out) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (i >= groups) return;
  Four x = LoadFour(o + i * 128 + 4 * Lane());
  const uint8_t byte = scales[i];
  const float scale = FromUe8m0(byte);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    x.v[k] = FromE4m3(ToE4m3(x.v[k] * PowerOfMinus(byte - 127))) * scale;
  }
  PackGroup(x.v, /*quantise=*/false, out + i * 128);
}

RotatedHeads HeadsOf(const InverseRopeOutArgs& args) {
  return {args.o.data(),
          args.cos_sin.data(),
          args.o.dim(0),
          static_cast<int>(args.o.dim(1)),
          static_cast<int>(args.o.dim(2)),
          static_cast<int>(args.cos_sin.dim(1))};
}

class UnfusedHeads final : public Sequence {
 public:
  UnfusedHeads(CudaBackend& backend, const InverseRopeOutArgs& args, uint16_t* packed)
      : heads_(HeadsOf(args)),
        packed_(packed),
        stream_(UnfusedAccess::StateOf(backend).stream),
        memory_(backend) {}

  Status Make() {
    FATHOM_ASSIGN_OR_RETURN(scales_, memory_.Room<uint8_t>(groups()));
    return OkStatus();
  }

  Status Run() override {
    const int64_t pairs = heads_.n * heads_.num * heads_.pairs;
    Launch(RotateKernel, Blocks(pairs, kBlock), kBlock, 0, stream_, heads_);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: rotation of heads"));
    Launch(RoundKernel, Blocks(2 * pairs, kBlock), kBlock, 0, stream_, heads_);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: rounding"));
    const float* const o = heads_.o;
    Launch(ScalesKernel, Blocks(groups(), kWarps), kBlock, 0, stream_, o, groups(), scales_);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: scales"));
    Launch(CodesKernel, Blocks(groups(), kWarps), kBlock, 0, stream_, o, scales_, groups(),
           packed_);
    return LaunchStatus("unfused: codes");
  }
  [[nodiscard]] int num_kernels() const override { return 4; }

 private:
  [[nodiscard]] int64_t groups() const { return heads_.n * heads_.cols() / 128; }

  const RotatedHeads heads_;
  uint16_t* const packed_;
  const cudaStream_t stream_;
  SequenceMemory memory_;
  uint8_t* scales_ = nullptr;
};

class FusedHeads final : public Sequence {
 public:
  FusedHeads(CudaBackend& backend, const InverseRopeOutArgs& args, uint16_t* packed)
      : heads_(HeadsOf(args)), packed_(packed), stream_(UnfusedAccess::StateOf(backend).stream) {}

  Status Run() override { return PackHeads(heads_, /*quantise=*/true, packed_, stream_); }
  [[nodiscard]] int num_kernels() const override { return 1; }

 private:
  const RotatedHeads heads_;
  uint16_t* const packed_;
  const cudaStream_t stream_;
};

Status CheckHeads(CudaBackend& backend, const InverseRopeOutArgs& args) {
  FATHOM_RETURN_IF_ERROR(UnfusedAccess::StateOf(backend).Enter());
  const RotatedHeads heads = HeadsOf(args);
  if (heads.n > 0 && heads.pairs > 0 && heads.dim % 4 == 0 && heads.cols() % 128 == 0) {
    return OkStatus();
  }
  return Unimplemented("unfused inverse rope: sizes");
}

}  // namespace

Result<std::unique_ptr<Sequence>> MakeUnfusedHeads(CudaBackend& backend,
                                                   const InverseRopeOutArgs& args,
                                                   uint16_t* packed) {
  FATHOM_RETURN_IF_ERROR(CheckHeads(backend, args));
  auto sequence = std::make_unique<UnfusedHeads>(backend, args, packed);
  FATHOM_RETURN_IF_ERROR(sequence->Make());
  return std::unique_ptr<Sequence>(std::move(sequence));
}

Result<std::unique_ptr<Sequence>> MakeFusedHeads(CudaBackend& backend,
                                                 const InverseRopeOutArgs& args, uint16_t* packed) {
  FATHOM_RETURN_IF_ERROR(CheckHeads(backend, args));
  return std::unique_ptr<Sequence>(new FusedHeads(backend, args, packed));
}

}  // namespace fathom::cuda
