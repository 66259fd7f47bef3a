// Queries and window KV of one attention layer.
//
// q, per head, in place: unweighted RMS norm, then RoPE on the last rope_dim channels. The norm's
// arithmetic is bf16 step by step in the official code (square, mean, + eps, rsqrt, product); the
// reference backend follows it, others may differ by one bf16 ulp.
// kv: weighted RMSNorm (bf16), RoPE, then the values that an entry of the page's format holds (on
// the e4m3 grid with bf16 rotated channels; kF32: as they are). They go to step_kv, exactly as
// LoadEntry would return them, for the queries of this step; and as an entry to the token's
// position in the window's page if the table has a block there, for later steps.
// Source: official inference code, model.py: Attention.forward.
#pragma once

#include "backend/page_format.h"
#include "backend/step_plan.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct QNormRopeKvInsertArgs {
  TensorView<float> q;                     // [n, H, d], read and written
  TensorView<const float> kv;              // [n, d], output of wkv
  TensorView<const float> kv_norm_weight;  // [d]
  TensorView<const float> cos_sin;         // [n, rope_dim / 2, 2]
  float norm_eps = 0.0f;
  const StepPlan* plan = nullptr;
  PageView swa;               // written where the table has blocks
  TensorView<float> step_kv;  // [n, d], written
};

Status Check(const QNormRopeKvInsertArgs& args);

}  // namespace fathom
