// The table of tests/reports/README.md has every report once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "tests/reports/report_files.h"
#include "tests/test_data.h"

namespace fathom::reports {
namespace {

TEST(ReportTable, HasEveryReportOnce) {
  std::ifstream readme(ProjectPath("tests/reports/README.md"));
  ASSERT_TRUE(readme);
  const std::regex id("R[0-9]{3}");
  std::vector<std::string> listed;
  for (std::string line; std::getline(readme, line);) {
    if (line.rfind("| R", 0) != 0) continue;
    const std::string cell = line.substr(0, line.find('|', 1));
    for (std::sregex_iterator it(cell.begin(), cell.end(), id), end; it != end; ++it) {
      listed.push_back(it->str());
    }
  }
  EXPECT_THAT(listed, testing::UnorderedElementsAreArray(ReportIds()));
}

}  // namespace
}  // namespace fathom::reports
