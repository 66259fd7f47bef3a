// CudaBackend: every operation on one NVIDIA GPU, for any geometry, in official numerics.
//
// Kernels run on streams of the backend's own; operations launch and return. What they read on
// the host (plans, token ids, experts that AddExperts was not told of) is copied through pinned
// memory of fixed size first; when the device is more than that behind, an operation waits for it.
// Sums have orders that depend on the shapes of one token's work alone, and no kernel adds floats
// atomically: a token's bits depend on neither its neighbours nor the run. They differ from the
// reference's by the order of fp32 sums; what is rounded to few bits behind them is the same
// arithmetic. Single-threaded like every Backend. This header needs no CUDA.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/fills_memory.h"
#include "backend/pinned_memory.h"
#include "backend/records_steps.h"
#include "backend/runs_behind.h"
#include "backend/side_lane.h"

namespace fathom {

namespace cuda {
struct DeviceReport;
}

struct CudaOptions {
  int device = 0;  // as the CUDA runtime counts
  // Pinned bytes for the host's operands of operations, and for plans given to BeginStep; half as
  // many of the device. Half of each is in use while the other half's copies are under way; an
  // operand or plan must fit in a half.
  int64_t operand_bytes = int64_t{16} << 20;
  int64_t plan_bytes = int64_t{64} << 20;
  // Rows of a step that scratch memory is laid out for at a time; operations on longer steps take
  // several rounds. Rows do not depend on each other there, so results do not depend on it.
  int scratch_rows = 4096;
};

class CudaBackend final : public Backend,
                          public HasPinnedMemory,
                          public FillsMemory,
                          public RecordsSteps,
                          public RunsBehind,
                          public SideLane {
 public:
  // kUnavailable without driver or device; kUnimplemented for GPUs other than Hopper's, naming
  // them, and for exact numerics.
  static Result<std::unique_ptr<CudaBackend>> Create(Numerics numerics,
                                                     const CudaOptions& options = {});
  ~CudaBackend() override;

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] DeviceMemory& memory() override;
  DeviceMemory& pinned_memory() override;
  Status Fill(const FillRecipe& recipe, std::byte* to, int64_t bytes) override;
  // Operations on more than these limits, and experts of more layers, get kInvalidArgument.
  Status Prepare(const BackendLimits& limits) override;
  Status BeginStep(const StepPlan& plan) override;
  Status Synchronize() override;
  Status AddExperts(std::span<const ExpertWeights> routed, const ExpertWeights& shared) override;
  // Copies the experts of a layer that lie in pinned memory, where the step is long enough to read
  // them more than once each (scratch.h, StagesExperts); calls nothing of CUDA where not.
  Status PrefetchExperts(std::span<const ExpertWeights> routed, int64_t rows,
                         int experts_per_token) override;
  [[nodiscard]] bool samples() const override { return true; }
  Status BeginRecording() override;
  Result<int> EndRecording() override;
  Status Replay(int recording) override;
  [[nodiscard]] int64_t recording_bytes() const override;
  Status PlaceTokens(std::span<const TokenSource> sources,
                     TensorView<const int32_t> tokens) override;
  Result<int> BeginReceive(std::span<const std::byte> first,
                           std::span<const std::byte> second) override;
  Result<std::span<const std::byte>> Receive(int receipt) override;
  [[nodiscard]] int side_lane_rows() const override;
  Status UseLane(Lane lane) override;
  Status Signal(int event) override;
  Status Await(int event) override;

 protected:
  Status DoEmbedExpand(const EmbedExpandArgs& args) override;
  Status DoHcPreNorm(const HcPreNormArgs& args) override;
  Status DoHcPost(const HcPostArgs& args) override;
  Status DoRmsNorm(const RmsNormArgs& args) override;
  Status DoLinear(const LinearArgs& args) override;
  Status DoRopeTable(const RopeTableArgs& args) override;
  Status DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) override;
  Status DoCompressInsert(const CompressInsertArgs& args) override;
  Status DoIndexerTopk(const IndexerTopkArgs& args) override;
  Status DoSparseAttention(const SparseAttentionArgs& args) override;
  Status DoInverseRopeOut(const InverseRopeOutArgs& args) override;
  Status DoRoute(const RouteArgs& args) override;
  Status DoMoe(const MoeArgs& args) override;
  Status DoHead(const HeadArgs& args) override;
  Status DoSample(const SampleArgs& args) override;

 private:
  friend struct UnfusedAccess;  // backend/cuda/unfused/: the same work on the same stream
  struct State;
  explicit CudaBackend(std::unique_ptr<State> state);
  // What the device has reported; its findings are done with.
  Status Settle(const cuda::DeviceReport& report);

  std::unique_ptr<State> state_;
};

}  // namespace fathom
