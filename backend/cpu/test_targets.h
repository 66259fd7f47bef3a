// Tests that run once for every instruction set that Highway finds on this machine.
#pragma once

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <string>
#include <vector>

namespace fathom::test {

// The best set as it is, and the lesser ones by hiding the others from Highway.
inline std::vector<int64_t> FastTargets() {
  std::vector<int64_t> targets;
  for (int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4}) {
    if ((hwy::SupportedTargets() & target) != 0) targets.push_back(target);
  }
  return targets;
}

// And the portable one, ten times slower: for the kernels alone. Operations are the same code for
// all.
inline std::vector<int64_t> AllTargets() {
  std::vector<int64_t> targets = FastTargets();
  targets.push_back(HWY_EMU128);
  return targets;
}

class PerTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
};

inline std::string TargetName(const testing::TestParamInfo<int64_t>& target) {
  return hwy::TargetName(target.param);
}

}  // namespace fathom::test

#define FATHOM_FOR_TARGETS(suite, targets) \
  INSTANTIATE_TEST_SUITE_P(Targets, suite, testing::ValuesIn(targets), fathom::test::TargetName)
