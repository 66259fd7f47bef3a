#include "model/expert_placement.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace fathom {

ExpertPlacement::ExpertPlacement(const ExpertUse& use, int64_t num_on_host)
    : num_experts_(use.num_experts()) {
  struct Candidate {
    int64_t count = 0;
    int place = 0;  // among those of its layer, the least used first
    int layer = 0;
    int expert = 0;
  };
  std::vector<Candidate> candidates;
  std::vector<int> order(static_cast<size_t>(num_experts_));
  for (int layer = 0; layer < use.num_layers(); ++layer) {
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      return std::tuple(use.count(layer, a), a) < std::tuple(use.count(layer, b), b);
    });
    for (int place = 0; place < num_experts_; ++place) {
      const int expert = order[static_cast<size_t>(place)];
      candidates.push_back({use.count(layer, expert), place, layer, expert});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(a.count, a.place, a.layer) < std::tuple(b.count, b.place, b.layer);
  });
  on_host_.resize(candidates.size());
  num_on_host_ = std::clamp<int64_t>(num_on_host, 0, static_cast<int64_t>(candidates.size()));
  for (int64_t i = 0; i < num_on_host_; ++i) {
    const Candidate& c = candidates[static_cast<size_t>(i)];
    on_host_[static_cast<size_t>(int64_t{c.layer} * num_experts_ + c.expert)] = true;
  }
}

}  // namespace fathom
