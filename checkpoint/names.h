// Spellings of tensor names (docs/checkpoints.md).
#pragma once

#include <string>
#include <string_view>

namespace fathom {

// The native name: a leading "model." removed, and every dot-separated part that is an alias
// replaced (self_attn -> attn, mlp -> ffn, weight_scale_inv -> scale, e_score_correction_bias ->
// bias).
std::string NativeTensorName(std::string_view name);

// Copies of the embedding or the head that some writers store with an MTP block; the block uses the
// main model's. `name` is native.
bool IsSharedMtpTensor(std::string_view name);

// The block of "mtp.<block>.…", -1 for other names and numbers above 9999.
int MtpBlockOf(std::string_view name);

}  // namespace fathom
