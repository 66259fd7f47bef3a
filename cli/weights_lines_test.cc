#include "cli/weights_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fathom::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

WeightsReport Report(WeightsMode mode) {
  WeightsReport report;
  report.mode = mode;
  report.bytes = 159'600'000'000;
  report.num_files = 46;
  report.memory = {270'000'000'000, 200'000'000'000};
  report.expert_bytes = 145'000'000'000;
  report.token_expert_bytes = 3'400'000'000;
  report.token_dense_bytes = 7'900'000'000;
  report.huge_page_policy = "madvise";
  return report;
}

TEST(WeightsLines, WhatFitsIsOneLineWithoutAWarning) {
  for (const WeightsMode mode : {WeightsMode::kMmap, WeightsMode::kCopy, WeightsMode::kHugePages}) {
    WeightsReport report = Report(mode);
    report.huge_page_bytes = mode == WeightsMode::kHugePages ? 159'000'000'000 : 0;
    const std::vector<LogLine> lines = DescribeWeights(report);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_FALSE(lines[0].is_warning);
    EXPECT_THAT(lines[0].text, AllOf(HasSubstr("159.60 GB"), HasSubstr("46 file(s)")));
    EXPECT_EQ(lines[0].text.find("159.00 GB of it in huge pages") != std::string::npos,
              mode == WeightsMode::kHugePages);
  }
}

TEST(WeightsLines, ADeviceIsNamedWithWhatItHolds) {
  WeightsReport report = Report(WeightsMode::kMmap);
  report.device = "GPU 0 (NVIDIA H200)";
  report.device_bytes = 120'000'000'000;
  report.exceed_memory = false;
  const std::vector<LogLine> lines = DescribeWeights(report);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_FALSE(lines[0].is_warning);
  EXPECT_THAT(lines[0].text, AllOf(HasSubstr("120.00 GB of 159.60 GB"), HasSubstr(report.device),
                                   HasSubstr("46 file(s)")));
}

TEST(WeightsLines, ExpertsOfTheHostAreCounted) {
  WeightsReport report = Report(WeightsMode::kMmap);
  report.device = "GPU 0 (NVIDIA H200)";
  report.device_bytes = 120'000'000'000;
  report.pinned_bytes = 1'500'000'000;
  report.plan.emplace();
  EXPECT_EQ(DescribeWeights(report).size(), 1u);
  report.plan->num_host_experts = 112;
  report.plan->weights.num_experts = 11'008;
  const std::vector<LogLine> lines = DescribeWeights(report);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_FALSE(lines[1].is_warning);
  EXPECT_THAT(lines[1].text, HasSubstr("112 of 11008 routed ones (1.50 GB)"));
}

TEST(WeightsLines, WhatIsLargerThanMemorySaysWhatATokenReads) {
  WeightsReport report = Report(WeightsMode::kMmap);
  report.memory = {128'000'000'000, 100'000'000'000};
  report.exceed_memory = true;
  report.expert_prefetch = true;
  std::vector<LogLine> lines = DescribeWeights(report);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].is_warning);
  EXPECT_THAT(lines[0].text,
              AllOf(HasSubstr("159.60 GB"), HasSubstr("128.00 GB memory 100.00 GB is available"),
                    HasSubstr("7.90 GB that every token needs (they tend to stay"),
                    HasSubstr("3.40 GB of chosen experts, out of 145.00 GB")));
  report.memory = {8'000'000'000, 7'000'000'000};
  EXPECT_THAT(DescribeWeights(report)[0].text, HasSubstr("(more than memory holds)"));
  report.memory = {};
  EXPECT_THAT(DescribeWeights(report)[0].text, HasSubstr("does not say"));
}

TEST(WeightsLines, WhatIsNotInMemoryIsSaid) {
  WeightsReport report = Report(WeightsMode::kMmap);
  report.expert_prefetch = true;
  const std::vector<LogLine> lines = DescribeWeights(report);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_FALSE(lines[1].is_warning);
  EXPECT_THAT(lines[1].text, HasSubstr("not all of them are in memory"));
}

TEST(WeightsLines, HugePagesThatTheSystemDoesNotGiveAreAWarning) {
  WeightsReport report = Report(WeightsMode::kHugePages);
  for (const char* policy : {"never", ""}) {
    report.huge_page_policy = policy;
    const std::vector<LogLine> lines = DescribeWeights(report);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_TRUE(lines[1].is_warning);
    EXPECT_THAT(lines[1].text, AllOf(HasSubstr("--weights hugepages"), HasSubstr("enabled is"),
                                     HasSubstr(*policy == 0 ? "absent" : "never")));
  }
  report.huge_page_policy = "always";
  report.huge_page_bytes = 100'000'000'000;
  EXPECT_THAT(DescribeWeights(report)[1].text,
              AllOf(HasSubstr("100.00 GB of 159.60 GB"), HasSubstr("fragmented")));
}

TEST(WeightsLines, NodesAreSaid) {
  WeightsReport report = Report(WeightsMode::kCopy);
  report.num_nodes = 2;
  EXPECT_THAT(DescribeWeights(report).back().text,
              AllOf(HasSubstr("memory nodes: 2"), HasSubstr("of the weights")));
  report.mode = WeightsMode::kMmap;
  EXPECT_THAT(DescribeWeights(report).back().text,
              AllOf(HasSubstr("memory nodes: 2"), HasSubstr("--weights copy or hugepages")));
  report.num_nodes = 1;
  EXPECT_THAT(DescribeWeights(report).back().text, Not(HasSubstr("nodes")));
}

}  // namespace
}  // namespace fathom::cli
