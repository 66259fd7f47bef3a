#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <string>

#include "backend/cuda/limits.h"
#include "backend/cuda/state.h"
#include "backend/memory_layout.h"
#include "backend/ops/hc_pre_norm.h"

namespace fathom {
namespace {

// Compiled code is Hopper's alone (CMakeLists.txt); any other GPU is refused before a launch fails.
Status CheckDevice(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    return Unavailable(std::string("cuda backend: no NVIDIA driver or no GPU here (") +
                       cudaGetErrorName(error == cudaSuccess ? cudaErrorNoDevice : error) +
                       "); it needs a driver for CUDA 13 and a Hopper GPU");
  }
  if (device < 0 || device >= count) {
    return InvalidArgument("cuda backend: GPU " + std::to_string(device) + " of " +
                           std::to_string(count));
  }
  cudaDeviceProp properties = {};
  FATHOM_CUDA(cudaGetDeviceProperties(&properties, device));
  if (properties.major != 9 || properties.minor != 0) {
    return Unimplemented("cuda backend: GPU " + std::to_string(device) + " is " + properties.name +
                         ", sm_" + std::to_string(properties.major) +
                         std::to_string(properties.minor) +
                         "; this build has kernels for sm_90a (H100, H200) only, others need " +
                         "kernels of their own");
  }
  return OkStatus();
}

}  // namespace

CudaBackend::State::State(Numerics numerics_in, const CudaOptions& options_in,
                          cudaStream_t stream_in)
    : numerics(numerics_in),
      options(options_in),
      stream(stream_in),
      memory(options_in.device, stream_in),
      operands("host operands", stream_in),
      plans("step plan", stream_in) {}

CudaBackend::State::~State() {
  static_cast<void>(cudaSetDevice(options.device));
  // Kernels may still use what is about to be freed.
  static_cast<void>(cudaStreamSynchronize(stream));
  static_cast<void>(cudaStreamDestroy(stream));
}

Status CudaBackend::State::Enter() {
  if (!prepared) return InvalidArgument("cuda backend: used before Prepare");
  FATHOM_CUDA(cudaSetDevice(options.device));
  return OkStatus();
}

Result<cuda::DevicePlan> CudaBackend::State::Plan(const StepPlan* plan) {
  if (plan == begun) return begun_plan;
  return cuda::CopyPlan(*plan, operands);
}

CudaBackend::CudaBackend(std::unique_ptr<State> state)
    : Backend(state->numerics), state_(std::move(state)) {}

CudaBackend::~CudaBackend() = default;

Result<std::unique_ptr<CudaBackend>> CudaBackend::Create(Numerics numerics,
                                                         const CudaOptions& options) {
  if (numerics == Numerics::kExact) {
    return Unimplemented(
        "cuda backend: exact numerics are those of the reference and cpu backends "
        "(--backend reference or --backend cpu)");
  }
  FATHOM_RETURN_IF_ERROR(CheckDevice(options.device));
  FATHOM_CUDA(cudaSetDevice(options.device));
  cudaStream_t stream = nullptr;
  FATHOM_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  auto state = std::make_unique<State>(numerics, options, stream);
  return std::unique_ptr<CudaBackend>(new CudaBackend(std::move(state)));
}

DeviceMemory& CudaBackend::memory() { return state_->memory; }

Status CudaBackend::Prepare(const BackendLimits& l) {
  FATHOM_RETURN_IF_ERROR(CheckLimits(l));
  FATHOM_RETURN_IF_ERROR(Fits("cuda backend: head dim", l.max_head_dim, cuda::kMaxHeadDim));
  FATHOM_RETURN_IF_ERROR(Fits("cuda backend: experts", l.max_experts, cuda::kMaxExperts));
  FATHOM_RETURN_IF_ERROR(
      Fits("cuda backend: experts per token", l.max_experts_per_token, kMaxExpertsPerToken));
  State& state = *state_;
  FATHOM_CUDA(cudaSetDevice(state.options.device));
  FATHOM_RETURN_IF_ERROR(state.operands.Allocate(state.options.operand_bytes, state.memory));
  FATHOM_RETURN_IF_ERROR(state.plans.Allocate(state.options.plan_bytes, state.memory));
  constexpr auto kReportBytes = static_cast<int64_t>(sizeof(cuda::DeviceReport));
  FATHOM_ASSIGN_OR_RETURN(state.host_report, cuda::PinnedBytes::Create(kReportBytes));

  // Scores of so many rows at a time that they stay around 64 MiB.
  constexpr int64_t kScoreBytes = int64_t{64} << 20;
  constexpr int64_t kMaxIndexRows = 256;
  cuda::Scratch& s = state.scratch;
  s.rows = std::min(l.max_rows, state.options.scratch_rows);
  s.max_entries = l.max_positions / 4 + 1;
  s.index_rows = static_cast<int>(std::clamp<int64_t>(
      kScoreBytes / (s.max_entries * 4), 1, std::min<int64_t>(kMaxIndexRows, l.max_rows)));
  constexpr int64_t kPartialBytes = int64_t{64} << 20;
  s.attention_splits =
      l.max_head_dim >= cuda::kTileHeadDim ? kPartialBytes / (cuda::kTileHeadDim * 4) : 0;
  std::byte* base = nullptr;
  MemoryLayout sum(DeviceMemory::kAlignment);
  const auto place = [&](auto*& array, int64_t rows, int64_t row_elements) {
    using T = std::remove_reference_t<decltype(*array)>;
    const int64_t offset = sum.Add<T>(rows, row_elements);
    array = base == nullptr ? nullptr : reinterpret_cast<T*>(base + offset);
  };
  const auto place_all = [&] {
    const int64_t slots = s.rows * (int64_t{l.max_experts_per_token} + 1);
    sum = MemoryLayout(DeviceMemory::kAlignment);
    place(state.report, 1, 1);
    place(s.inputs, s.rows, l.max_cols);
    place(s.packed, s.rows, std::max<int64_t>(l.max_cols, int64_t{l.max_heads} * l.max_head_dim));
    place(s.expert_begin, 1, int64_t{l.max_experts} + 2);
    place(s.expert_items, 1, slots);
    place(s.expert_tiles, 1, slots);
    place(s.num_expert_tiles, 1, 1);
    place(s.hidden, slots, l.max_expert_width);
    place(s.packed_hidden, slots, l.max_expert_width);
    place(s.expert_out, slots, l.max_cols);
    place(s.attention_partial, s.attention_splits, cuda::kTileHeadDim);
    place(s.attention_stats, s.attention_splits, 2);
    place(s.router_logits, s.rows, l.max_experts);
    place(s.mixes, s.rows, (2 + kMaxHcMult) * kMaxHcMult + 1);
    place(s.index_queries, s.index_rows, int64_t{l.max_heads} * l.max_head_dim);
    place(s.index_weights, s.index_rows, l.max_heads);
    place(s.index_scores, s.index_rows, s.max_entries);
  };
  // First pass: sizes; second pass: pointers.
  place_all();
  if (sum.overflow()) {
    return OutOfMemory("cuda backend: scratch memory of more bytes than there are addresses");
  }
  state.scratch_memory = DeviceBuffer();
  FATHOM_ASSIGN_OR_RETURN(state.scratch_memory, state.memory.Allocate(sum.bytes()));
  base = state.scratch_memory.data();
  place_all();
  FATHOM_CUDA(cudaMemsetAsync(state.report, 0, sizeof(cuda::DeviceReport), state.stream));
  state.limits = l;
  state.begun = nullptr;
  state.inexact_entries_told = 0;
  state.prepared = true;
  return Synchronize();
}

Status CudaBackend::BeginStep(const StepPlan& plan) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  state.begun = nullptr;
  FATHOM_RETURN_IF_ERROR(state.plans.NextHalf());
  FATHOM_ASSIGN_OR_RETURN(state.begun_plan, cuda::CopyPlan(plan, state.plans));
  state.begun = &plan;
  return OkStatus();
}

Status CudaBackend::Synchronize() {
  State& state = *state_;
  if (!state.prepared) return OkStatus();
  FATHOM_CUDA(cudaSetDevice(state.options.device));
  FATHOM_CUDA(cudaMemcpyAsync(state.host_report.data(), state.report, sizeof(cuda::DeviceReport),
                              cudaMemcpyDeviceToHost, state.stream));
  FATHOM_CUDA(cudaStreamSynchronize(state.stream));
  const auto& report = *reinterpret_cast<const cuda::DeviceReport*>(state.host_report.data());
  CountInexactEntries(static_cast<int64_t>(report.inexact_entries - state.inexact_entries_told));
  state.inexact_entries_told = report.inexact_entries;
  if (report.finding == cuda::DeviceReport::kNone) return OkStatus();
  FATHOM_CUDA(cudaMemsetAsync(&state.report->finding, 0, sizeof(report.finding), state.stream));
  if (report.finding == cuda::DeviceReport::kHashTable) {
    return DataLoss("tid2eid: token " + std::to_string(report.token) + " names expert " +
                    std::to_string(report.value) + " of " + std::to_string(report.limit));
  }
  return InvalidArgument("moe: expert id out of range: row " + std::to_string(report.token) +
                         " names expert " + std::to_string(report.value) + " of " +
                         std::to_string(report.limit));
}

}  // namespace fathom
