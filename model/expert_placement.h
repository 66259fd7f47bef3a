// ExpertPlacement: which routed experts lie in memory of the host instead of the device's.
//
// Experts leave the device in one fixed order, the least used first, so that a placement with more
// of them outside contains every one with less. Immutable; any thread may read.
#pragma once

#include <cstdint>
#include <vector>

#include "model/expert_use.h"

namespace fathom {

class ExpertPlacement {
 public:
  ExpertPlacement() = default;  // all on the device
  // `num_on_host` of them outside, from 0 to all. By their counts in `use`; equal ones leave the
  // layers in turns, so without counts (a fresh ExpertUse) every layer has as many outside, give or
  // take one.
  ExpertPlacement(const ExpertUse& use, int64_t num_on_host);

  [[nodiscard]] bool on_host(int layer, int expert) const {
    if (num_on_host_ == 0) return false;
    return on_host_[static_cast<size_t>(int64_t{layer} * num_experts_ + expert)];
  }
  [[nodiscard]] int64_t num_on_host() const { return num_on_host_; }

 private:
  int num_experts_ = 0;  // of a layer
  int64_t num_on_host_ = 0;
  std::vector<bool> on_host_;  // [layers, experts]
};

}  // namespace fathom
