// Probes do the work that they claim: the reader reads every word, rates are of a size that
// processors have.
#include "bench/machine_limits.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace fathom::bench {
namespace {

TEST(Probes, ReaderReadsEveryWordOnce) {
  std::vector<uint64_t> words(3 * kReadUnit / sizeof(uint64_t));
  std::iota(words.begin(), words.end(), 5);
  const uint64_t n = words.size();
  EXPECT_EQ(ReadWords(words.data(), n * sizeof(uint64_t)), n * 5 + n * (n - 1) / 2);
  EXPECT_EQ(ReadWords(words.data(), 0), 0U);
}

TEST(Probes, InstructionAndCodeGoTogether) {
  for (const ProbeKind kind : {ProbeKind::kFp32Fma, ProbeKind::kBf16Dot, ProbeKind::kInt8Dot}) {
    const ComputeProbe probe = FindProbe(kind);
    EXPECT_EQ(probe.run != nullptr, *probe.instruction != '\0');
    EXPECT_EQ(probe.operations > 0, probe.run != nullptr);
    if (probe.run != nullptr) probe.run();
  }
}

TEST(MachineLimits, ReportsTheBestAndAllPasses) {
  auto limits = MachineLimits::Create(2);
  ASSERT_TRUE(limits.ok()) << limits.status().ToString();
  EXPECT_GE((*limits)->buffer_bytes(), MachineLimits::kLeastBytes);
  EXPECT_EQ((*limits)->read(), 0.0);
  const double first = (*limits)->MeasureRead(2).value();
  EXPECT_GT(first, 0.0);
  EXPECT_GE((*limits)->read(), (*limits)->MeasureRead(1).value());
  EXPECT_GE((*limits)->read(), first);
  ASSERT_TRUE((*limits)->MeasureCompute().ok());
  const ReportTable table = (*limits)->Table();
  ASSERT_EQ(table.rows.size(), 4U);
  EXPECT_EQ(std::get<int64_t>(table.rows[0].back()), 3);
  for (const auto& row : table.rows) EXPECT_EQ(row.size(), table.columns.size());
  const bool has = FindProbe(ProbeKind::kFp32Fma).run != nullptr;
  EXPECT_EQ((*limits)->fp32() > 0.0, has);
}

}  // namespace
}  // namespace fathom::bench
