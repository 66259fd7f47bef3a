// Which compressed entries each query of a ratio-4 layer attends to.
//
// Per query, in place on a copy: RoPE on the last rope_dim channels of every index head, Hadamard
// rotation (Sylvester order, di^-0.5, one bf16 rounding), e2m1 in groups of 32.
//   w[h]     = bf16(bf16(head_weights[h]) * (di^-0.5 * Hi^-0.5))
//   score[j] = sum over h ascending of w[h] * relu(dot(q[h], key[j])), fp32
// where dot is the fp32 sum, ascending, of the dot products of 32 channels each. In official
// numerics those are exact: small integers times two powers of two. (They stay so while scales are
// far enough inside the range of fp32; beyond that, infinities and zeros may differ.)
// Candidates are the entries j < (position + 1) / 4; the topk best are kept, equal scores go to the
// smaller j. With no more candidates than topk all are kept and nothing is scored.
// Scores are fp32, not the official bf16, so that the set is defined (docs/architecture.md,
// "Numerics"). Source: official inference code, model.py: Indexer.forward.
// kInvalidArgument when a candidate of any query has no block.
#pragma once

#include "backend/page_format.h"
#include "backend/step_plan.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct IndexerTopkArgs {
  TensorView<const float> q;             // [n, Hi, di], output of indexer.wq_b
  TensorView<const float> head_weights;  // [n, Hi], output of weights_proj, bf16
  TensorView<const float> cos_sin;       // [n, rope_dim / 2, 2]
  const StepPlan* plan = nullptr;
  PageView keys;
  int topk = 0;
  TensorView<int32_t> entries;      // [n, topk], written: ascending, the rest -1
  TensorView<int32_t> num_entries;  // [n], written
};

Status Check(const IndexerTopkArgs& args);

}  // namespace fathom
