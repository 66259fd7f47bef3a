// The files of the field reports (tests/data/vectors/README.md).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fathom::reports {

// Ids of all reports of a kind, sorted.
std::vector<std::string> ReportIds(const std::string& kind);
// Of all kinds.
std::vector<std::string> ReportIds();
// Empty, and a failed test, when there is no such file or it is no report.
nlohmann::json ReadReport(const std::string& id);

}  // namespace fathom::reports
