#include "backend/cuda/emulation/recording.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

namespace fathom::emulation {
namespace {

using Works = std::vector<std::function<void()>>;
std::unique_ptr<Works> captured;  // while a capture is under way
bool graphs_find_no_memory = false;

}  // namespace

void LetGraphsFindNoMemory(bool none) { graphs_find_no_memory = none; }

void RunOrRecord(std::function<void()> work) {
  if (captured == nullptr) return work();
  captured->push_back(std::move(work));
}

bool Recording() { return captured != nullptr; }

}  // namespace fathom::emulation

using fathom::emulation::captured;
using fathom::emulation::graphs_find_no_memory;
using fathom::emulation::Works;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t /*stream*/, cudaStreamCaptureMode /*mode*/) {
  if (captured != nullptr) return cudaErrorIllegalState;
  captured = std::make_unique<Works>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t /*stream*/, cudaGraph_t* graph) {
  if (captured == nullptr) return cudaErrorIllegalState;
  *graph = reinterpret_cast<cudaGraph_t>(captured.release());
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  if (graphs_find_no_memory) return cudaErrorMemoryAllocation;
  *exec = reinterpret_cast<cudaGraphExec_t>(new Works(*reinterpret_cast<const Works*>(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t /*exec*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t /*stream*/) {
  for (const auto& work : *reinterpret_cast<const Works*>(exec)) work();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<Works*>(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete reinterpret_cast<Works*>(exec);
  return cudaSuccess;
}

}  // extern "C"
