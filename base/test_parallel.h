// What loops of a ThreadPool promise, whatever its threads and nodes. For tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/parallel.h"

namespace fathom::test {

// Each task reads what another task wrote one loop ago.
inline void ExpectLoopsSeeEachOther(ThreadPool& pool, int64_t loops) {
  std::array<int64_t, 6> value{};
  for (int64_t loop = 0; loop < loops; ++loop) {
    std::array<int64_t, 6> next{};
    const int64_t tasks = 2 + loop % 5;
    pool.ParallelFor(tasks, [&](int64_t i) {
      const auto own = static_cast<size_t>(i), other = static_cast<size_t>((i + 1) % tasks);
      next[own] = value[other] + 1;
    });
    const bool same =
        std::all_of(next.begin(), next.begin() + tasks, [&](int64_t v) { return v == loop + 1; });
    ASSERT_TRUE(same) << "loop " << loop;
    value.fill(loop + 1);
  }
}

}  // namespace fathom::test
