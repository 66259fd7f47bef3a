// Experts for tests of the mixture.
#pragma once

#include "backend/ops/test_values.h"
#include "backend/weights.h"

namespace fathom {

struct TestExpert {
  TestExpert(testing_values::Random& random, DType dtype, int dim, int width)
      : w1(testing_values::TestWeight::Random(random, dtype, width, dim)),
        w2(testing_values::TestWeight::Random(random, dtype, dim, width)),
        w3(testing_values::TestWeight::Random(random, dtype, width, dim)) {
    // Outputs of the sizes that models have, so that the clamp is met by some and not by all.
    for (testing_values::TestWeight* w : {&w1, &w3}) {
      for (uint8_t& s : w->scale()) s = static_cast<uint8_t>(s - (dtype == DType::kI8 ? 5 : 11));
    }
  }
  [[nodiscard]] ExpertWeights view() const { return {w1.view(), w2.view(), w3.view()}; }

  testing_values::TestWeight w1, w2, w3;
};

}  // namespace fathom
