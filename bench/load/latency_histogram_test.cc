#include "bench/load/latency_histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace fathom::load {
namespace {

using std::chrono::nanoseconds;

TEST(LatencyHistogram, IsEmptyAtFirst) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.mean_ms(), 0.0);
  EXPECT_EQ(histogram.PercentileMs(0.5), 0.0);
  EXPECT_EQ(histogram.max_ms(), 0.0);
}

TEST(LatencyHistogram, OneValueIsAllOfIt) {
  LatencyHistogram histogram;
  histogram.Add(std::chrono::microseconds(1234567));
  for (const double share : {0.0, 0.5, 0.99, 1.0}) {
    EXPECT_DOUBLE_EQ(histogram.PercentileMs(share), 1234.567);
  }
  EXPECT_DOUBLE_EQ(histogram.mean_ms(), 1234.567);
  EXPECT_DOUBLE_EQ(histogram.max_ms(), 1234.567);
}

TEST(LatencyHistogram, PercentilesAreWithinAHundredthOfSortedValues) {
  LatencyHistogram histogram;
  std::vector<double> values;
  double sum = 0.0;
  for (int i = 0; i < 5000; ++i) {
    // From nanoseconds to hours, in no order.
    const double ns = std::floor(std::exp(0.006 * ((i * 1237) % 5000)));
    histogram.Add(nanoseconds(static_cast<int64_t>(ns)));
    values.push_back(ns);
    sum += ns;
  }
  std::sort(values.begin(), values.end());
  for (const double share : {0.001, 0.1, 0.5, 0.9, 0.99, 1.0}) {
    const double exact = values[static_cast<size_t>(std::ceil(share * 5000)) - 1] * 1e-6;
    EXPECT_NEAR(histogram.PercentileMs(share), exact, exact * 0.01) << share;
  }
  EXPECT_NEAR(histogram.mean_ms(), sum / 5000 * 1e-6, sum * 1e-16);
  EXPECT_EQ(histogram.max_ms(), values.back() * 1e-6);
}

TEST(LatencyHistogram, TakesTheEndsOfTime) {
  LatencyHistogram histogram;
  histogram.Add(nanoseconds(-5));
  histogram.Add(nanoseconds(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(histogram.PercentileMs(0.5), 0.0);
  EXPECT_EQ(histogram.PercentileMs(1.0), histogram.max_ms());
}

}  // namespace
}  // namespace fathom::load
