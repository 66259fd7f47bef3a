// ExpertStaging: a layer's experts on their way from memory of the host, beside other work.
//
// Copies run on a stream of their own, into device memory that all layers share. They begin when
// everything is done that was launched before them, so no operation loses what it reads; the
// operation that takes the experts waits for them on the device. Single-threaded.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/expert_tables.h"

namespace fathom::cuda {

class ExpertStaging {
 public:
  explicit ExpertStaging(cudaStream_t operations) : operations_(operations) {}
  // Nothing may be under way (Wait).
  ~ExpertStaging();
  ExpertStaging(const ExpertStaging&) = delete;
  ExpertStaging& operator=(const ExpertStaging&) = delete;

  // Before the first Begin; again is fine.
  Status Create();

  // Begins to copy. `layer` must have copies.
  Status Begin(const ExpertTables::Layer& layer);
  // The next operation takes experts where they are.
  void Forget() { begun_ = nullptr; }
  // The table that the next operation on the layer is to take, once: the staged one, behind its
  // copies, if they were begun last.
  Result<const ExpertWeights*> Table(const ExpertTables::Layer& layer);
  // Waits until nothing is under way, and forgets.
  Status Wait();

 private:
  cudaStream_t operations_;
  cudaStream_t copies_ = nullptr;
  cudaEvent_t free_ = nullptr;  // what was launched before the copies is done
  cudaEvent_t here_ = nullptr;  // the copies are
  const ExpertTables::Layer* begun_ = nullptr;
  bool under_way_ = false;
};

}  // namespace fathom::cuda
