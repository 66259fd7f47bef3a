#include "tests/reports/report_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/test_data.h"

namespace fathom::reports {
namespace {

std::filesystem::path Folder() { return ProjectPath("tests/data/vectors/reports"); }

}  // namespace

nlohmann::json ReadReport(const std::string& id) {
  std::ifstream in(Folder() / (id + ".json"));
  nlohmann::json report = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  const bool valid = report.is_object() && report.contains("input") && report.contains("expect");
  EXPECT_TRUE(valid) << id << " is no report";
  return valid ? report : nlohmann::json();
}

std::vector<std::string> ReportIds() {
  std::vector<std::string> ids;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(Folder(), error)) {
    if (file.path().extension() == ".json") ids.push_back(file.path().stem().string());
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<std::string> ReportIds(const std::string& kind) {
  std::vector<std::string> ids = ReportIds();
  std::erase_if(ids, [&kind](const std::string& id) {
    const nlohmann::json report = ReadReport(id);
    return report.is_null() || report["input"].value("kind", "") != kind;
  });
  return ids;
}

}  // namespace fathom::reports
