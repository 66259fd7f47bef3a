// Failures that users reported on other engines, input kind "sim": arithmetic of the cache planner.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cache/planner.h"
#include "tests/reports/report_files.h"

namespace fathom::reports {
namespace {

using nlohmann::json;

// Official entry sizes.
CachePlanner PlannerFor(const json& layers) {
  CacheGeometry geometry = {{}, 512, 64, 128, 128};
  for (const auto& [kind, count] : layers.items()) {
    const int ratio = kind == "ratio4" ? 4 : kind == "ratio128" ? 128 : 0;
    EXPECT_TRUE(ratio > 0 || kind == "window") << kind;
    geometry.ratios.insert(geometry.ratios.end(), count.get<size_t>(), ratio);
  }
  return CachePlanner(CacheLayout(geometry, Numerics::kOfficial));
}

// R089: layers that only have a window cost a window, whatever the length.
TEST(SimReports, WindowLayersOfADraftCostHardlyAnyTokens) {
  ASSERT_EQ(ReportIds("sim"), std::vector<std::string>{"R089"});
  const json report = ReadReport("R089");
  ASSERT_EQ(report.at("expect").at("relation"),
            "bytes(with_draft, n) <= 1.05 * bytes(base, n) for every n");
  const json& input = report.at("input");
  const CachePlanner base = PlannerFor(input.at("base").at("layers"));
  const CachePlanner with_draft = PlannerFor(input.at("with_draft").at("layers"));
  for (const int64_t n : input.at("contexts").get<std::vector<int64_t>>()) {
    const auto at_most = [](int64_t bytes) { return bytes + bytes / 20; };
    EXPECT_LE(with_draft.BlockBytes(with_draft.MaxBlocks(n)),
              at_most(base.BlockBytes(base.MaxBlocks(n))));
    EXPECT_GT(with_draft.BlockBytes(with_draft.MaxBlocks(n)), base.BlockBytes(base.MaxBlocks(n)));
    // What admission and start-up count with: whole slabs.
    EXPECT_LE(with_draft.BytesFor(1, n), at_most(base.BytesFor(1, n)));
    // The tokens of the report, from the same memory.
    const int64_t memory = base.BytesFor(1, n);
    EXPECT_GE(at_most(with_draft.MaxLength(1, memory, n)), n);
  }
}

}  // namespace
}  // namespace fathom::reports
