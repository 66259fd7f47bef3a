#include "backend/cuda/expert_staging.h"

#include "backend/cuda/status.h"

namespace fathom::cuda {

ExpertStaging::~ExpertStaging() {
  for (cudaEvent_t event : {free_, here_}) {
    if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
  }
  if (copies_ != nullptr) static_cast<void>(cudaStreamDestroy(copies_));
}

Status ExpertStaging::Create() {
  if (copies_ == nullptr) {
    FATHOM_CUDA(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking));
  }
  for (cudaEvent_t* event : {&free_, &here_}) {
    if (*event == nullptr) FATHOM_CUDA(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  return OkStatus();
}

Status ExpertStaging::Begin(const ExpertTables::Layer& layer) {
  begun_ = nullptr;
  FATHOM_CUDA(cudaEventRecord(free_, operations_));
  FATHOM_CUDA(cudaStreamWaitEvent(copies_, free_, 0));
  under_way_ = true;
  for (const StagedCopy& copy : layer.copies) {
    FATHOM_CUDA(cudaMemcpyAsync(copy.to, copy.from, static_cast<size_t>(copy.bytes),
                                cudaMemcpyHostToDevice, copies_));
  }
  FATHOM_CUDA(cudaEventRecord(here_, copies_));
  begun_ = &layer;
  return OkStatus();
}

Result<const ExpertWeights*> ExpertStaging::Table(const ExpertTables::Layer& layer) {
  if (begun_ != &layer) return layer.table;
  begun_ = nullptr;
  FATHOM_CUDA(cudaStreamWaitEvent(operations_, here_, 0));
  return layer.staged_table;
}

Status ExpertStaging::Wait() {
  begun_ = nullptr;
  if (!under_way_) return OkStatus();
  FATHOM_CUDA(cudaStreamSynchronize(copies_));
  under_way_ = false;
  return OkStatus();
}

}  // namespace fathom::cuda
