// See unfused.h and backend/ops/q_norm_rope_kv_insert.h.
#include "backend/cuda/launch.cuh"
#include "backend/cuda/products.cuh"
#include "backend/cuda/rows.cuh"
#include "backend/cuda/unfused/access.h"
#include "backend/cuda/unfused/entries.h"
#include "backend/cuda/unfused/unfused.h"

namespace fathom::cuda {
namespace {

// A warp per head: the factor that its norm multiplies with.
__global__ void __launch_bounds__(kBlock)
    SquaresKernel(const float* q, int64_t heads, int dim, float eps, float* inverse) {
  const int64_t head = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (head >= heads) return;
  const auto* const fours = reinterpret_cast<const float4*>(q + head * dim);
  double sum = 0.0;
#pragma unroll 4
  for (int i = Lane(); i < dim / 4; i += kWarp) {
    const float4 four = fours[i];
    const float v[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(RoundBf16(v[k] * v[k]));
  }
  sum = WarpSum(sum);
  const float mean = RoundBf16(static_cast<float>(sum / static_cast<double>(dim)));
  if (Lane() == 0) inverse[head] = RoundBf16(1.0f / sqrtf(RoundBf16(mean + eps)));
}

// A thread per four channels.
__global__ void __launch_bounds__(kBlock)
    ScaleKernel(float* q, unsigned fours, unsigned fours_per_head, const float* inverse) {
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= fours) return;
  const float factor = inverse[i / fours_per_head];
  float4 x = reinterpret_cast<const float4*>(q)[i];
  x = {RoundBf16(x.x * factor), RoundBf16(x.y * factor), RoundBf16(x.z * factor),
       RoundBf16(x.w * factor)};
  reinterpret_cast<float4*>(q)[i] = x;
}

class QNormRopeKvInsert final : public Sequence {
 public:
  QNormRopeKvInsert(CudaBackend& backend, const QNormRopeKvInsertArgs& args)
      : args_(args), stream_(UnfusedAccess::StateOf(backend).stream), memory_(backend) {}

  Status Make() {
    const int64_t n = args_.q.dim(0);
    FATHOM_ASSIGN_OR_RETURN(const std::vector<EntryRef> places, WindowPlaces(args_));
    FATHOM_ASSIGN_OR_RETURN(places_, memory_.Put(places));
    FATHOM_ASSIGN_OR_RETURN(inverse_, memory_.Room<float>(n * args_.q.dim(1)));
    FATHOM_ASSIGN_OR_RETURN(kv_.data, memory_.Room<float>(args_.kv.size()));
    kv_.n = n;
    kv_.width = static_cast<int>(args_.kv.dim(1));
    FATHOM_ASSIGN_OR_RETURN(records_, memory_.Room<std::byte>(n * args_.swa.format.entry_bytes()));
    return OkStatus();
  }

  Status Run() override {
    const int64_t heads = args_.q.dim(0) * args_.q.dim(1);
    const auto dim = static_cast<int>(args_.q.dim(2));
    const auto pairs = static_cast<int>(args_.cos_sin.dim(1));
    float* const q = args_.q.data();
    Launch(SquaresKernel, Blocks(heads, kWarps), kBlock, 0, stream_, q, heads, dim, args_.norm_eps,
           inverse_);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: squares"));
    const int64_t fours = heads * dim / 4;
    Launch(ScaleKernel, Blocks(fours, kBlock), kBlock, 0, stream_, q, static_cast<unsigned>(fours),
           static_cast<unsigned>(dim / 4), static_cast<const float*>(inverse_));
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: scaling"));
    FATHOM_RETURN_IF_ERROR(RotateRows({q, heads, dim}, args_.cos_sin.data(), pairs,
                                      static_cast<int>(args_.q.dim(1)), stream_));
    FATHOM_RETURN_IF_ERROR(
        NormRows(args_.kv.data(), args_.kv_norm_weight.data(), args_.norm_eps, kv_, stream_));
    FATHOM_RETURN_IF_ERROR(RotateRows(kv_, args_.cos_sin.data(), pairs, 1, stream_));
    FATHOM_RETURN_IF_ERROR(
        QuantiseRows(kv_, args_.swa.format, records_, args_.step_kv.data(), stream_));
    return InsertRecords(records_, kv_.n, args_.swa, places_, stream_);
  }
  [[nodiscard]] int num_kernels() const override { return 7; }

 private:
  const QNormRopeKvInsertArgs args_;
  const cudaStream_t stream_;
  SequenceMemory memory_;
  const EntryRef* places_ = nullptr;  // by row
  float* inverse_ = nullptr;          // by head
  EntryRows kv_;
  std::byte* records_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Sequence>> MakeUnfused(CudaBackend& backend,
                                              const QNormRopeKvInsertArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  FATHOM_RETURN_IF_ERROR(UnfusedAccess::StateOf(backend).Enter());
  auto sequence = std::make_unique<QNormRopeKvInsert>(backend, args);
  FATHOM_RETURN_IF_ERROR(sequence->Make());
  return std::unique_ptr<Sequence>(std::move(sequence));
}

}  // namespace fathom::cuda
