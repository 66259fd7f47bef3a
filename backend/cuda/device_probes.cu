#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cuda/device_probes.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/status.h"

namespace fathom::cuda {
namespace {

constexpr int kThreads = 256;
// Reads: words that a thread has under way at a time.
constexpr int kWords = 8;
constexpr int kChains = 8;
constexpr int kFmaSteps = 1 << 14;
constexpr int kFmaBlocksPerSm = 8;
constexpr int kMmaSteps = 1 << 14;
constexpr int kMmaBlocksPerSm = 4;
constexpr int kMmaThreads = 128;  // a warpgroup
constexpr int kM = 64, kN = 128, kK = 16;

__device__ uint32_t Mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

__global__ void FillKernel(uint32_t* out, int64_t words) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    out[i] = Mixed(static_cast<uint32_t>(i));
  }
}

// Blocks read tiles of kThreads * kWords words in turn; a tile's loads are under way together.
__global__ void __launch_bounds__(kThreads)
    ReadKernel(const uint4* __restrict__ in, int64_t tiles, uint32_t* out) {
  uint32_t sum = 0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const uint4* const begin = in + tile * (kThreads * kWords) + threadIdx.x;
    uint4 words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = __ldcs(begin + i * kThreads);
#pragma unroll
    for (int i = 0; i < kWords; ++i) sum ^= words[i].x ^ words[i].y ^ words[i].z ^ words[i].w;
  }
  // Never true for the caller's data, which the compiler cannot know.
  if (sum == 0x13572468u) *out = sum;
}

__global__ void __launch_bounds__(kThreads) FmaKernel(float start, float factor, float* out) {
  float values[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) values[i] = start + static_cast<float>(threadIdx.x + i);
  for (int step = 0; step < kFmaSteps; ++step) {
#pragma unroll
    for (int i = 0; i < kChains; ++i) values[i] = fmaf(values[i], factor, start);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kChains; ++i) sum += values[i];
  if (sum == -1.0f) *out = sum;
}

// Of an operand in shared memory in core matrices of 8 rows x 16 bytes, one behind the other, no
// swizzle; `stride` bytes between those of the next 8 rows.
__device__ uint64_t Descriptor(const void* operand, uint32_t stride) {
  constexpr uint64_t kLeading = 128;  // bytes between the two halves of 16 columns
  const auto address = static_cast<uint64_t>(__cvta_generic_to_shared(operand));
  return ((address & 0x3FFFF) >> 4) | (kLeading >> 4) << 16 | uint64_t{stride >> 4} << 32;
}

__device__ void Multiply(float (&d)[kM * kN / kMmaThreads], uint64_t a, uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63"
      "}, %64, %65, 1, 1, 1, 0, 0;\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(a), "l"(b));
}

__global__ void __launch_bounds__(kMmaThreads) MmaKernel(float* out) {
  __shared__ alignas(128) uint16_t a[kM * kK];
  __shared__ alignas(128) uint16_t b[kN * kK];
  // Signs and mantissas at random, magnitudes from 2^-7 to 2^-3.
  const auto fill = [](uint16_t* values, int count, uint32_t seed) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kMmaThreads) {
      values[i] =
          static_cast<uint16_t>((Mixed(seed + static_cast<uint32_t>(i)) & 0x81FFu) | 0x3C00u);
    }
  };
  fill(a, kM * kK, blockIdx.x);
  fill(b, kN * kK, blockIdx.x + 0x10000u);
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
  __syncthreads();
  const uint64_t a_operand = Descriptor(a, 256), b_operand = Descriptor(b, 256);
  float d[kM * kN / kMmaThreads];
  for (float& value : d) value = 0.0f;
  for (int step = 0; step < kMmaSteps; step += 8) {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
    for (int i = 0; i < 8; ++i) Multiply(d, a_operand, b_operand);
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
  }
  float sum = 0.0f;
  for (const float value : d) sum += value;
  if (sum == -1.0f) *out = sum;
}

__global__ void EmptyKernel() {}

}  // namespace

struct DeviceProbes::State {
  State(int device_in, cudaStream_t stream_in)
      : device(device_in), stream(stream_in), memory(device_in, stream_in) {}
  ~State() {
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(cudaStreamSynchronize(stream));
    if (begin != nullptr) static_cast<void>(cudaEventDestroy(begin));
    if (end != nullptr) static_cast<void>(cudaEventDestroy(end));
    static_cast<void>(cudaStreamDestroy(stream));
  }
  // Seconds of what `launch` puts on the stream.
  template <typename Launch>
  Result<double> Time(const char* name, Launch launch) {
    FATHOM_CUDA(cudaSetDevice(device));
    FATHOM_CUDA(cudaEventRecord(begin, stream));
    FATHOM_RETURN_IF_ERROR(launch());
    FATHOM_RETURN_IF_ERROR(LaunchStatus(name));
    FATHOM_CUDA(cudaEventRecord(end, stream));
    FATHOM_CUDA(cudaEventSynchronize(end));
    float ms = 0.0f;
    FATHOM_CUDA(cudaEventElapsedTime(&ms, begin, end));
    return static_cast<double>(ms) * 1e-3;
  }

  int device;
  cudaStream_t stream;  // owned
  GpuMemory memory;
  cudaEvent_t begin = nullptr, end = nullptr;
  DeviceBuffer buffer;
  DeviceBuffer result;
  int64_t cache_bytes = 0;
  int num_sms = 0;
};

DeviceProbes::DeviceProbes(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeviceProbes::~DeviceProbes() = default;

Result<std::unique_ptr<DeviceProbes>> DeviceProbes::Create(int device) {
  FATHOM_CUDA(cudaSetDevice(device));
  cudaStream_t stream = nullptr;
  FATHOM_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  auto state = std::make_unique<State>(device, stream);
  FATHOM_CUDA(cudaEventCreate(&state->begin));
  FATHOM_CUDA(cudaEventCreate(&state->end));
  cudaDeviceProp properties = {};
  FATHOM_CUDA(cudaGetDeviceProperties(&properties, device));
  state->cache_bytes = properties.l2CacheSize;
  state->num_sms = properties.multiProcessorCount;
  FATHOM_ASSIGN_OR_RETURN(const MemoryState free, state->memory.State());
  constexpr int64_t kTwoTiles = int64_t{2} * kThreads * kWords * sizeof(uint4);
  int64_t bytes = std::min(kMostBytes, free.free_bytes / 4);
  bytes -= bytes % kTwoTiles;
  if (bytes < kLeastBytes) {
    return OutOfMemory("the read bandwidth is measured over at least " +
                       std::to_string(kLeastBytes) + " bytes, a quarter of the free memory of " +
                       free.name + " is " + std::to_string(free.free_bytes / 4));
  }
  FATHOM_ASSIGN_OR_RETURN(state->buffer, state->memory.Allocate(bytes));
  FATHOM_ASSIGN_OR_RETURN(state->result, state->memory.Allocate(DeviceMemory::kAlignment));
  FillKernel<<<static_cast<unsigned>(state->num_sms * 8), kThreads, 0, stream>>>(
      reinterpret_cast<uint32_t*>(state->buffer.data()), bytes / 4);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("FillKernel"));
  std::unique_ptr<DeviceProbes> probes(new DeviceProbes(std::move(state)));
  // Once without a use for the times: code that is loaded, clocks that rise.
  FATHOM_RETURN_IF_ERROR(probes->Read().status());
  FATHOM_RETURN_IF_ERROR(probes->Copy().status());
  FATHOM_RETURN_IF_ERROR(probes->Fp32().status());
  FATHOM_RETURN_IF_ERROR(probes->Bf16().status());
  FATHOM_RETURN_IF_ERROR(probes->Launches().status());
  return Result<std::unique_ptr<DeviceProbes>>(std::move(probes));
}

int64_t DeviceProbes::buffer_bytes() const { return state_->buffer.bytes(); }
int64_t DeviceProbes::cache_bytes() const { return state_->cache_bytes; }

Result<double> DeviceProbes::Read() {
  State& s = *state_;
  return s.Time("ReadKernel", [&s] {
    constexpr int64_t kTileBytes = int64_t{kThreads} * kWords * sizeof(uint4);
    ReadKernel<<<static_cast<unsigned>(s.num_sms * 8), kThreads, 0, s.stream>>>(
        reinterpret_cast<const uint4*>(s.buffer.data()), s.buffer.bytes() / kTileBytes,
        reinterpret_cast<uint32_t*>(s.result.data()));
    return OkStatus();
  });
}

Result<double> DeviceProbes::Copy() {
  State& s = *state_;
  const int64_t half = s.buffer.bytes() / 2;
  return s.Time("copy", [&s, half] {
    return s.memory.CopyWithin(s.buffer.data() + half, s.buffer.data(), half);
  });
}

Result<double> DeviceProbes::Fp32() {
  State& s = *state_;
  return s.Time("FmaKernel", [&s] {
    FmaKernel<<<static_cast<unsigned>(s.num_sms * kFmaBlocksPerSm), kThreads, 0, s.stream>>>(
        0.25f, 0.75f, reinterpret_cast<float*>(s.result.data()));
    return OkStatus();
  });
}

double DeviceProbes::fp32_operations() const {
  return 2.0 * state_->num_sms * kFmaBlocksPerSm * kThreads * kChains * kFmaSteps;
}

Result<double> DeviceProbes::Bf16() {
  State& s = *state_;
  return s.Time("MmaKernel", [&s] {
    MmaKernel<<<static_cast<unsigned>(s.num_sms * kMmaBlocksPerSm), kMmaThreads, 0, s.stream>>>(
        reinterpret_cast<float*>(s.result.data()));
    return OkStatus();
  });
}

double DeviceProbes::bf16_operations() const {
  return 2.0 * state_->num_sms * kMmaBlocksPerSm * kMmaSteps * (kM * kN * kK);
}

Result<double> DeviceProbes::Launches() {
  State& s = *state_;
  return s.Time("EmptyKernel", [&s] {
    for (int i = 0; i < kLaunches; ++i) EmptyKernel<<<1, 32, 0, s.stream>>>();
    return OkStatus();
  });
}

}  // namespace fathom::cuda
