// What CudaBackend's operations share: device, stream, staging, scratch. Included by backend/cuda
// only; needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/memory.h"
#include "backend/cuda/staging.h"
#include "backend/cuda/status.h"

namespace fathom {
namespace cuda {

// What kernels find out and the host asks for at Synchronize. Only the first finding is kept.
struct DeviceReport {
  enum Finding : int32_t { kNone, kHashTable, kExpertId };
  int32_t finding = kNone;
  int32_t token = 0;  // id of kHashTable, row of kExpertId
  int64_t value = 0;  // the expert id that is none
  int64_t limit = 0;  // number of experts
  unsigned long long inexact_entries = 0;
};

// One token of one expert: which row of x, with which weight, and where its results go.
struct ExpertItem {
  int32_t row = 0;
  int32_t slot = 0;  // row * (experts per token + 1) + place among the row's experts
  float weight = 0.0f;
};

// Channels of the attention heads that have tile kernels.
inline constexpr int kTileHeadDim = 512;

// Items of one expert that a block takes together.
struct ExpertTile {
  int32_t expert = 0;
  int32_t first = 0;  // item
  int32_t count = 0;
};

// Pointers into one allocation; sizes are functions of the limits.
struct Scratch {
  int rows = 0;                // min(max_rows, CudaOptions::scratch_rows)
  float* inputs = nullptr;     // [rows][max_cols], inputs of a product
  uint16_t* packed = nullptr;  // [rows][max(max_cols, max_heads * max_head_dim)], of tile kernels
  // Mixture of experts: items sorted by expert, then intermediate and final values by slot.
  int32_t* expert_begin = nullptr;     // [max_experts + 2]
  ExpertItem* expert_items = nullptr;  // [rows * (max_experts_per_token + 1)]
  ExpertTile* expert_tiles = nullptr;  // [slots]
  int32_t* num_expert_tiles = nullptr;
  float* hidden = nullptr;            // [slots][max_expert_width]
  uint16_t* packed_hidden = nullptr;  // as many, for tile kernels
  uint16_t* expert_out = nullptr;     // [slots][max_cols], bf16
  // Attention: what splits of keys sum to, of so many (row, split, head)s; 0 for other head sizes
  // than kTileHeadDim.
  int64_t attention_splits = 0;
  float* attention_partial = nullptr;  // [attention_splits][kTileHeadDim]
  float* attention_stats = nullptr;    // [attention_splits][2]
  float* router_logits = nullptr;      // [rows][max_experts]
  double* mixes = nullptr;             // [rows][sums of a hyper-connection]
  // Indexer.
  int index_rows = 0;              // rows that are scored at a time
  int64_t max_entries = 0;         // compressed entries of a sequence
  float* index_queries = nullptr;  // [index_rows][max_heads * max_head_dim]
  float* index_weights = nullptr;  // [index_rows][max_heads]
  float* index_scores = nullptr;   // [index_rows][max_entries]
};

}  // namespace cuda

struct CudaBackend::State {
  State(Numerics numerics, const CudaOptions& options, cudaStream_t stream);
  ~State();

  // Before anything else in an operation.
  Status Enter();
  // The plan that BeginStep copied, or a copy for this operation.
  Result<cuda::DevicePlan> Plan(const StepPlan* plan);

  Numerics numerics;
  CudaOptions options;
  cudaStream_t stream;  // owned
  cuda::GpuMemory memory;
  cuda::StagingRing operands;
  cuda::StagingRing plans;
  BackendLimits limits;
  bool prepared = false;
  DeviceBuffer scratch_memory;
  cuda::Scratch scratch;
  cuda::DeviceReport* report = nullptr;  // on the device
  cuda::PinnedBytes host_report;
  unsigned long long inexact_entries_told = 0;
  const StepPlan* begun = nullptr;
  cuda::DevicePlan begun_plan;
};

}  // namespace fathom
