#include "backend/cuda/cuda_backend.h"

#include <functional>
#include <string>

#include "backend/cuda/limits.h"
#include "backend/cuda/state.h"
#include "backend/memory_layout.h"

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
      lanes(stream_in),
      memory(options_in.device, stream_in),
      pinned(options_in.device),
      operands("host operands", stream_in),
      plans("step plan", stream_in),
      staging(stream_in),
      receipts(stream_in) {}

CudaBackend::State::~State() {
  static_cast<void>(cudaSetDevice(options.device));
  // Kernels and copies may still use what is about to be freed.
  static_cast<void>(staging.Wait());
  static_cast<void>(lanes.Wait());
  static_cast<void>(cudaStreamSynchronize(stream));
  static_cast<void>(cudaStreamDestroy(stream));
}

Status CudaBackend::State::Enter() {
  if (lanes.on_side()) return InvalidArgument("cuda backend: not what the side lane does");
  return EnterLane();
}

Status CudaBackend::State::EnterLane() {
  if (!prepared) return InvalidArgument("cuda backend: used before Prepare");
  FATHOM_CUDA(cudaSetDevice(options.device));
  return lanes.Enter();
}

Result<cuda::DevicePlan> CudaBackend::State::Plan(const StepPlan* plan) {
  if (plan == begun) {
    recorder.UseWholePlan();
    return begun_copy.plan;
  }
  FATHOM_RETURN_IF_ERROR(MayCopy("the step plan"));
  FATHOM_ASSIGN_OR_RETURN(const cuda::PlanCopy copy, cuda::CopyPlan(*plan, operands));
  return copy.plan;
}

Result<const int32_t*> CudaBackend::State::Operand(std::span<const int32_t> values) {
  const auto* const copied = OperandOfBegun(values);
  if (copied != nullptr) return copied;
  FATHOM_RETURN_IF_ERROR(MayCopy("host values"));
  return operands.Copy(values);
}

const int32_t* CudaBackend::State::OperandOfBegun(std::span<const int32_t> values) {
  if (begun == nullptr || values.empty()) return nullptr;
  const cuda::DeviceOperands& device = begun_copy.operands;
  const auto within = [&](std::span<const int32_t> array, const int32_t* there) -> const int32_t* {
    // std::less orders pointers of different arrays as well.
    const std::less<const int32_t*> before;
    const int32_t* const end = array.data() + array.size();
    const bool inside = !array.empty() && !before(values.data(), array.data()) &&
                        !before(end, values.data() + values.size());
    return inside ? there + (values.data() - array.data()) : nullptr;
  };
  if (const auto* at = within(begun->token_ids, device.token_ids)) return at;
  if (const auto* at = within(begun->positions, device.positions)) return at;
  recorder.UseWholePlan();
  for (size_t r = 0; r < begun->anchors.size(); ++r) {
    if (const auto* at = within(begun->anchors[r], device.anchors[r])) return at;
  }
  return within(begun->logits_rows, device.logits_rows);
}

Result<cuda::StagingRing::Place> CudaBackend::State::ReserveOperand(int64_t bytes) {
  FATHOM_RETURN_IF_ERROR(MayCopy("host values"));
  return operands.Reserve(bytes);
}

Status CudaBackend::State::MayCopy(const char* what) const {
  if (!recorder.recording() && !lanes.on_side()) return OkStatus();
  return InvalidArgument(std::string("cuda backend: ") + what + " of an operation that is " +
                         (lanes.on_side() ? "the side lane's" : "recorded") +
                         " are not the begun plan's");
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
  FATHOM_RETURN_IF_ERROR(state->lanes.Create());
  return std::unique_ptr<CudaBackend>(new CudaBackend(std::move(state)));
}

DeviceMemory& CudaBackend::memory() { return state_->memory; }

DeviceMemory& CudaBackend::pinned_memory() { return state_->pinned; }

Status CudaBackend::Prepare(const BackendLimits& l) {
  FATHOM_RETURN_IF_ERROR(CheckLimits(l));
  FATHOM_RETURN_IF_ERROR(Fits("cuda backend: head dim", l.max_head_dim, cuda::kMaxHeadDim));
  FATHOM_RETURN_IF_ERROR(Fits("cuda backend: experts", l.max_experts, cuda::kMaxExperts));
  FATHOM_RETURN_IF_ERROR(
      Fits("cuda backend: experts per token", l.max_experts_per_token, kMaxExpertsPerToken));
  State& state = *state_;
  if (state.lanes.on_side()) return InvalidArgument("cuda backend: Prepare in the side lane");
  FATHOM_CUDA(cudaSetDevice(state.options.device));
  FATHOM_RETURN_IF_ERROR(state.lanes.Wait());
  FATHOM_RETURN_IF_ERROR(state.operands.Allocate(state.options.operand_bytes, state.memory));
  FATHOM_RETURN_IF_ERROR(state.plans.Allocate(state.options.plan_bytes, state.memory));
  constexpr auto kReportBytes = static_cast<int64_t>(sizeof(cuda::DeviceReport));
  FATHOM_ASSIGN_OR_RETURN(state.host_report, cuda::PinnedBytes::Create(kReportBytes));
  constexpr int64_t kResultBytes = 8;  // per row (backend/runs_behind.h)
  FATHOM_RETURN_IF_ERROR(state.receipts.Create(l.max_rows * kResultBytes));

  const MemoryLayout layout = cuda::LayOutScratch(l, state.options, nullptr, state.scratch);
  if (layout.overflow()) {
    return OutOfMemory("cuda backend: scratch memory of more bytes than there are addresses");
  }
  FATHOM_RETURN_IF_ERROR(state.staging.Wait());
  state.scratch_memory = DeviceBuffer();
  state.quantiles = DeviceBuffer();
  FATHOM_ASSIGN_OR_RETURN(state.scratch_memory, state.memory.Allocate(layout.bytes()));
  cuda::LayOutScratch(l, state.options, state.scratch_memory.data(), state.scratch);
  state.report = state.scratch.report;
  state.lanes.Prepare(state.scratch);
  state.experts.Reset(l, state.scratch);
  if (state.scratch.staged_experts != nullptr) FATHOM_RETURN_IF_ERROR(state.staging.Create());
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
  FATHOM_RETURN_IF_ERROR(state.lanes.Join());
  FATHOM_RETURN_IF_ERROR(state.plans.NextHalf());
  FATHOM_ASSIGN_OR_RETURN(state.begun_copy, cuda::CopyPlan(plan, state.plans));
  state.begun = &plan;
  return OkStatus();
}

Status CudaBackend::AddExperts(std::span<const ExpertWeights> routed, const ExpertWeights& shared) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  return state.experts.Add(routed, shared, state.memory, state.pinned);
}

Status CudaBackend::PrefetchExperts(std::span<const ExpertWeights> routed, int64_t rows,
                                    int experts_per_token) {
  State& state = *state_;
  state.staging.Forget();
  // What is recorded reads experts in place.
  if (state.recorder.recording() ||
      !cuda::StagesExperts(rows, experts_per_token, static_cast<int64_t>(routed.size()))) {
    return OkStatus();
  }
  FATHOM_RETURN_IF_ERROR(state.Enter());
  const cuda::ExpertTables::Layer* const layer = state.experts.Find(routed);
  if (layer == nullptr || layer->copies.empty()) return OkStatus();
  return state.staging.Begin(*layer);
}

Status CudaBackend::BeginRecording() {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  if (state.begun == nullptr) return InvalidArgument("cuda backend: a recording without a plan");
  state.staging.Forget();
  FATHOM_RETURN_IF_ERROR(state.lanes.Join());
  return state.recorder.Begin(state.stream);
}

Result<int> CudaBackend::EndRecording() {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  state.lanes.Forget();
  return state.recorder.End(state.stream, state.begun_copy.shape);
}

Status CudaBackend::Replay(int recording) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  if (state.begun == nullptr) return InvalidArgument("cuda backend: a replay without a plan");
  FATHOM_RETURN_IF_ERROR(state.lanes.Join());
  return state.recorder.Replay(recording, state.stream, state.begun_copy.shape);
}

int64_t CudaBackend::recording_bytes() const { return state_->recorder.bytes(); }

int CudaBackend::side_lane_rows() const { return state_->lanes.side_rows(); }

Status CudaBackend::UseLane(Lane lane) { return state_->lanes.Use(lane); }

Status CudaBackend::Signal(int event) {
  FATHOM_CUDA(cudaSetDevice(state_->options.device));
  return state_->lanes.Signal(event);
}

Status CudaBackend::Await(int event) {
  FATHOM_CUDA(cudaSetDevice(state_->options.device));
  return state_->lanes.Await(event);
}

Status CudaBackend::Synchronize() {
  State& state = *state_;
  FATHOM_CUDA(cudaSetDevice(state.options.device));
  if (!state.prepared) {
    // Only fills can have been called.
    FATHOM_CUDA(cudaStreamSynchronize(state.stream));
    return OkStatus();
  }
  FATHOM_RETURN_IF_ERROR(state.lanes.Join());
  FATHOM_CUDA(cudaMemcpyAsync(state.host_report.data(), state.report, sizeof(cuda::DeviceReport),
                              cudaMemcpyDeviceToHost, state.stream));
  FATHOM_CUDA(cudaStreamSynchronize(state.stream));
  FATHOM_RETURN_IF_ERROR(state.staging.Wait());
  return Settle(*reinterpret_cast<const cuda::DeviceReport*>(state.host_report.data()));
}

Result<int> CudaBackend::BeginReceive(std::span<const std::byte> first,
                                      std::span<const std::byte> second) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  FATHOM_RETURN_IF_ERROR(state.MayCopy("results"));
  return state.receipts.Begin(first, second, state.report);
}

Result<std::span<const std::byte>> CudaBackend::Receive(int receipt) {
  State& state = *state_;
  FATHOM_RETURN_IF_ERROR(state.Enter());
  FATHOM_ASSIGN_OR_RETURN(const cuda::Receipts::Received received, state.receipts.Wait(receipt));
  FATHOM_RETURN_IF_ERROR(Settle(received.report));
  return received.bytes;
}

Status CudaBackend::Settle(const cuda::DeviceReport& report) {
  State& state = *state_;
  // Reports may be settled in another order than they were made in.
  if (report.inexact_entries > state.inexact_entries_told) {
    CountInexactEntries(static_cast<int64_t>(report.inexact_entries - state.inexact_entries_told));
    state.inexact_entries_told = report.inexact_entries;
  }
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
