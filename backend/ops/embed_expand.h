// Token embedding, copied into the hc_mult copies of the residual stream.
// Source: official inference code, model.py: Transformer.forward.
#pragma once

#include <span>

#include "backend/weights.h"
#include "base/status.h"
#include "base/tensor_view.h"
#include "base/types.h"

namespace fathom {

struct EmbedExpandArgs {
  std::span<const TokenId> token_ids;  // [n], each within the table
  WeightView table;                    // bf16 [vocab, D]
  TensorView<float> hc;                // [n, hc_mult, D], written; all copies equal
};

// kInvalidArgument when shapes disagree or a token id is outside the table.
Status Check(const EmbedExpandArgs& args);

}  // namespace fathom
