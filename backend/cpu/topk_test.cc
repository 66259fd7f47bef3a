// Selection against sorting, on every instruction set of this machine.
#include "backend/cpu/topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/cpu/test_support.h"
#include "backend/cpu/test_targets.h"

namespace fathom {
namespace {

using test::Random;

class CpuTopk : public test::PerTarget {};
FATHOM_FOR_TARGETS(CpuTopk, test::AllTargets());

std::vector<int32_t> Sorted(const std::vector<float>& scores, size_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

// Nothing but the outputs and as much scratch memory as promised is written.
std::vector<int32_t> Select(const std::vector<float>& scores, size_t k) {
  std::vector<int32_t> out(k + 1, -7);
  const auto room = static_cast<size_t>(cpu::TopkListSize(static_cast<int64_t>(scores.size())));
  std::vector<int32_t> list(room + 1, -9);
  std::vector<uint32_t> keys(room + 1, 9u);
  cpu::TopkSelection selection(scores, std::span(out).first(k), list.data(), keys.data());
  selection.Run();
  EXPECT_EQ(out.back(), -7);
  EXPECT_EQ(list.back(), -9);
  EXPECT_EQ(keys.back(), 9u);
  out.pop_back();
  return out;
}

void ExpectSelects(const std::vector<float>& scores) {
  const size_t n = scores.size();
  for (size_t k : {size_t{1}, size_t{2}, size_t{17}, size_t{64}, size_t{512}, n / 2, n - 1}) {
    if (k < 1 || k >= n) continue;
    const std::vector<int32_t> want = Sorted(scores, k);
    ASSERT_EQ(Select(scores, k), want) << k << " of " << n;
  }
}

TEST_P(CpuTopk, ChoosesWhatSortingWouldChoose) {
  Random random(1);
  for (int n : {2, 3, 15, 16, 17, 63, 250, 4095, 4096, 5000, 50'001}) {
    ExpectSelects(random.Normals(n));
    // Around one value, and over the whole range of floats.
    std::vector<float> scores = random.Normals(n, 1e-4f);
    for (float& s : scores) s += 3.0f;
    ExpectSelects(scores);
    for (float& s : scores) s = std::ldexp(random.Normal(), random.Int(-140, 120));
    ExpectSelects(scores);
    // In order, so that the largest share their groups.
    std::sort(scores.begin(), scores.end());
    ExpectSelects(scores);
  }
}

TEST_P(CpuTopk, EqualScoresGoToTheSmallerIndex) {
  Random random(2);
  for (int n : {20, 300, 5000, 40'000}) {
    ExpectSelects(std::vector<float>(static_cast<size_t>(n), 0.0f));
    ExpectSelects(std::vector<float>(static_cast<size_t>(n), -2.5f));
    std::vector<float> scores(static_cast<size_t>(n));
    for (float& s : scores) s = static_cast<float>(random.Int(-3, 3));
    ExpectSelects(scores);
    // Zeros of both signs are equal.
    for (float& s : scores) s = random.Int(0, 1) == 0 ? -0.0f : 0.0f;
    scores[7] = 1.0f;
    ExpectSelects(scores);
  }
}

TEST_P(CpuTopk, InfinitiesAndNaNHaveAPlace) {
  Random random(3);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> scores = random.Normals(5000);
  for (size_t i = 0; i < scores.size(); i += 7) scores[i] = -kInfinity;
  for (size_t i = 3; i < scores.size(); i += 501) scores[i] = kInfinity;
  scores[11] = std::numeric_limits<float>::max();
  scores[12] = std::numeric_limits<float>::lowest();
  scores[13] = std::numeric_limits<float>::denorm_min();
  ExpectSelects(scores);
  // A NaN is above everything, whatever else it is.
  scores[4321] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Select(scores, 1), std::vector<int32_t>{4321});
}

}  // namespace
}  // namespace fathom
