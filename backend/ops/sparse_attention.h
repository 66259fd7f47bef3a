// Attention of each query over its window and its compressed entries; keys are values.
//
// For the query at position i: window entries max(0, i - window + 1) .. i, then compressed entries
// in ascending order: those in `entries` (ratio 4; each below (i + 1) / ratio), all j < (i + 1) /
// ratio (`entries` empty), or none (`compressed` empty). Window entries of this step (positions >=
// the sequence's start) are rows of step_kv, earlier ones stand in the window's pages; compressed
// entries always stand in pages. Per head, fp32: z_n = scale * (q . kv_n), m = max z_n,
//   out = bf16( sum_n exp(z_n - m) * kv_n / (sum_n exp(z_n - m) + exp(sink - m)) ).
// Probabilities stay fp32 on CPU backends. The order of the sums is a function of the position
// alone. Source: official inference code, model.py: Attention.forward; kernel.py: sparse_attn.
// kInvalidArgument when an earlier window entry or a visible compressed one has no block.
#pragma once

#include "backend/page_format.h"
#include "backend/step_plan.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct SparseAttentionArgs {
  TensorView<const float> q;  // [n, H, d], normalised and rotated
  const StepPlan* plan = nullptr;
  TensorView<const float> step_kv;  // [n, d], from QNormRopeKvInsert
  PageView swa;                     // read below the step's rows
  int window = 0;
  PageView compressed;  // empty for ratio-0 layers
  CacheKind compressed_kind = CacheKind::kC4Kv;
  int ratio = 0;                          // 0, 4 or 128
  TensorView<const int32_t> entries;      // [n, topk] from IndexerTopk, or empty
  TensorView<const int32_t> num_entries;  // [n], with `entries`
  TensorView<const float> sink;           // [H]
  float scale = 0.0f;                     // d^-0.5
  TensorView<float> out;                  // [n, H, d], written
};

Status Check(const SparseAttentionArgs& args);

}  // namespace fathom
