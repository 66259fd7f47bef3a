#include "bench/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace fathom::bench {
namespace {

Report Example() {
  Report report;
  report.bench = "example";
  report.conditions = {{"model", std::string("nano \xff")}, {"threads", int64_t{2}}};
  report.tables = {{"steps", {"name", "tokens", "median_us"}, {}}};
  report.tables[0].rows = {{std::string("first"), int64_t{1048576}, 0.0123456},
                           {std::string("second one"), int64_t{7}, 12345.678}};
  report.summary = {{"slowest_us", 12345.678}};
  return report;
}

TEST(Spread, TakesMiddleAndEnds) {
  const Spread odd = SpreadOf({5.0, 1.0, 2.0});
  EXPECT_EQ(odd.median, 2.0);
  EXPECT_EQ(odd.low, 1.0);
  EXPECT_EQ(odd.high, 5.0);
  EXPECT_EQ(SpreadOf({4.0, 1.0}).median, 2.5);
  EXPECT_EQ(SpreadOf({4.0}).median, 4.0);
}

TEST(Report, JsonHasEveryValueUnderItsName) {
  const auto json = nlohmann::json::parse(ReportJson(Example()), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["bench"], "example");
  EXPECT_EQ(json["conditions"]["threads"], 2);
  ASSERT_EQ(json["tables"]["steps"].size(), 2U);
  EXPECT_EQ(json["tables"]["steps"][0]["tokens"], 1048576);
  EXPECT_EQ(json["tables"]["steps"][1]["name"], "second one");
  EXPECT_EQ(json["tables"]["steps"][1]["median_us"], 12345.678);
  EXPECT_EQ(json["summary"]["slowest_us"], 12345.678);
  // A folder's name need not be UTF-8.
  EXPECT_EQ(json["conditions"]["model"], "nano \xef\xbf\xbd");
}

TEST(Report, TableIsAlignedAndKeepsSmallAndLargeFigures) {
  std::ostringstream out;
  PrintReport(out, Example());
  EXPECT_NE(out.str().find("\nsteps\n"
                           "  name         tokens  median_us\n"
                           "  first       1048576     0.0123\n"
                           "  second one        7      12346\n"),
            std::string::npos)
      << out.str();
}

TEST(Report, ConditionsNameTheMachineAndTheCode) {
  std::vector<std::string> names;
  for (const auto& [name, cell] : MachineConditions()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"version", "commit", "processors", "vectors"}));
}

}  // namespace
}  // namespace fathom::bench
