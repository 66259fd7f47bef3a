#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fathom {

std::vector<float> RopeFrequencies(const ModelConfig& config, bool compressed) {
  const double base = compressed ? config.compress_rope_theta : config.rope_theta;
  const int dim = config.rope_dim;
  std::vector<float> f(static_cast<size_t>(dim / 2));
  for (size_t k = 0; k < f.size(); ++k) {
    const float exponent = static_cast<float>(2 * k) / static_cast<float>(dim);
    f[k] = 1.0f / std::pow(static_cast<float>(base), exponent);
  }
  const RopeScaling& scaling = config.rope_scaling;
  if (!compressed || scaling.original_max_position <= 0) return f;

  // Pairs that turn more than beta_fast times over the original length keep their frequency, those
  // that turn less than beta_slow times are slowed by the factor, those between are blended.
  const auto pair_that_turns = [&](double turns) {
    return dim * std::log(scaling.original_max_position / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(base));
  };
  const double low = std::max(std::floor(pair_that_turns(scaling.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair_that_turns(scaling.beta_slow)), dim - 1.0);
  const auto span = static_cast<float>(high != low ? high - low : 0.001);
  for (size_t k = 0; k < f.size(); ++k) {
    const float ramp =
        std::clamp((static_cast<float>(k) - static_cast<float>(low)) / span, 0.0f, 1.0f);
    f[k] = f[k] / static_cast<float>(scaling.factor) * ramp + f[k] * (1.0f - ramp);
  }
  return f;
}

}  // namespace fathom
