// Tests that run once for every instruction set that this machine has.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cpu/dot/isa.h"

namespace fathom::test {

// And the portable one, ten times slower: for the kernels alone. Operations are the same code for
// all.
inline std::vector<cpu::Isa> AllTargets() {
  return {cpu::SupportedIsas().begin(), cpu::SupportedIsas().end()};
}

inline std::vector<cpu::Isa> FastTargets() {
  std::vector<cpu::Isa> targets;
  for (cpu::Isa isa : cpu::SupportedIsas()) {
    if (isa != cpu::Isa::kPortable) targets.push_back(isa);
  }
  return targets;
}

class PerTarget : public testing::TestWithParam<cpu::Isa> {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::SetIsa(GetParam()).ok()); }
  void TearDown() override { cpu::ResetIsa(); }
};

inline std::string TargetName(const testing::TestParamInfo<cpu::Isa>& target) {
  return std::string(cpu::IsaName(target.param));
}

}  // namespace fathom::test

#define FATHOM_FOR_TARGETS(suite, targets) \
  INSTANTIATE_TEST_SUITE_P(Targets, suite, testing::ValuesIn(targets), fathom::test::TargetName)
