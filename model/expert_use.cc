#include "model/expert_use.h"

namespace fathom {

ExpertUse::ExpertUse(int num_layers, int num_experts, int experts_per_token)
    : num_layers_(num_layers),
      num_experts_(num_experts),
      experts_per_token_(experts_per_token),
      counts_(static_cast<size_t>(int64_t{num_layers} * num_experts)) {}

void ExpertUse::Add(int layer, std::span<const int32_t> experts) {
  for (const int32_t expert : experts) {
    if (expert >= 0 && expert < num_experts_) ++counts_[Index(layer, expert)];
  }
}

}  // namespace fathom
