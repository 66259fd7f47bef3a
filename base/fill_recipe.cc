#include "base/fill_recipe.h"

#include <array>
#include <cstddef>
#include <vector>

namespace fathom {
namespace {

// The density is integrated with sums and products alone: exp and erf differ in their last bits
// from one C library to the next.
std::array<float, kNumFillQuantiles> MakeQuantiles() {
  constexpr int kStepsPerUnit = 4096;
  constexpr int kSteps = 5 * kStepsPerUnit;
  std::vector<double> cumulative = {0.0};
  for (int step = 0; step < kSteps; ++step) {
    const double x = (step + 0.5) / kStepsPerUnit;
    double density = 1.0 - x * x / 2.0 / 65536.0;
    for (int i = 0; i < 16; ++i) density *= density;  // (1 - y/n)^n is close to exp(-y)
    cumulative.push_back(cumulative.back() + density);
  }
  std::array<float, kNumFillQuantiles> quantiles{};
  size_t step = 0;
  for (size_t i = 0; i < quantiles.size(); ++i) {
    const double wanted = (static_cast<double>(i) + 0.5) / kNumFillQuantiles * cumulative.back();
    while (cumulative[step + 1] < wanted) ++step;
    const double part = (wanted - cumulative[step]) / (cumulative[step + 1] - cumulative[step]);
    quantiles[i] = static_cast<float>((static_cast<double>(step) + part) / kStepsPerUnit);
  }
  return quantiles;
}

}  // namespace

const float* FillQuantiles() {
  static const std::array<float, kNumFillQuantiles> kQuantiles = MakeQuantiles();
  return kQuantiles.data();
}

}  // namespace fathom
