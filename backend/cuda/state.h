// What CudaBackend's operations share: device, stream, staging, scratch. Included by backend/cuda
// only; needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/expert_staging.h"
#include "backend/cuda/expert_tables.h"
#include "backend/cuda/lanes.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/receipts.h"
#include "backend/cuda/recorder.h"
#include "backend/cuda/scratch.h"
#include "backend/cuda/staging.h"
#include "backend/cuda/status.h"

namespace fathom {

struct CudaBackend::State {
  State(Numerics numerics, const CudaOptions& options, cudaStream_t stream);
  ~State();

  // Before anything else in an operation of the main lane, and in one of both.
  Status Enter();
  Status EnterLane();
  // The plan that BeginStep copied, or a copy for this operation.
  Result<cuda::DevicePlan> Plan(const StepPlan* plan);
  // Where the device has values of the host that an operation was given: in the plan that BeginStep
  // copied, or in a copy for this operation.
  Result<const int32_t*> Operand(std::span<const int32_t> values);
  // Room for other host data of this operation; kInvalidArgument while recording and in the side
  // lane.
  Result<cuda::StagingRing::Place> ReserveOperand(int64_t bytes);
  // nullptr where the begun plan's arrays do not hold them.
  const int32_t* OperandOfBegun(std::span<const int32_t> values);
  [[nodiscard]] Status MayCopy(const char* what) const;

  Numerics numerics;
  CudaOptions options;
  cudaStream_t stream;  // of the main lane, copies and recordings; owned
  cuda::Lanes lanes;
  cuda::GpuMemory memory;
  cuda::PinnedMemory pinned;
  cuda::StagingRing operands;
  cuda::StagingRing plans;
  BackendLimits limits;
  bool prepared = false;
  DeviceBuffer scratch_memory;
  DeviceBuffer quantiles;  // of Fill, which comes before Prepare
  cuda::Scratch scratch;
  cuda::ExpertTables experts;
  cuda::ExpertStaging staging;
  cuda::DeviceReport* report = nullptr;  // the scratch's, on the device
  cuda::PinnedBytes host_report;
  unsigned long long inexact_entries_told = 0;
  const StepPlan* begun = nullptr;
  cuda::PlanCopy begun_copy;
  cuda::Recorder recorder;
  cuda::Receipts receipts;
};

}  // namespace fathom
