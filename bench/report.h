// Report: what a benchmark says, in one shape for people and for programs.
//
// Conditions, tables of figures, and the figures that are compared with a target. Names are words
// with underscores and end in their unit; they are the keys of the JSON. Plain data.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fathom::bench {

using Cell = std::variant<int64_t, double, std::string>;
using NamedCell = std::pair<std::string, Cell>;

struct ReportTable {
  std::string name;
  std::vector<std::string> columns;
  std::vector<std::vector<Cell>> rows;  // as many cells each as there are columns
};

struct Report {
  std::string bench;
  std::vector<NamedCell> conditions;
  std::vector<ReportTable> tables;
  std::vector<NamedCell> summary;
};

// One object: {"bench", "conditions": {..}, "tables": {name: [{column: value}]}, "summary": {..}}.
std::string ReportJson(const Report& report);
// Conditions, aligned tables, summary.
void PrintReport(std::ostream& out, const Report& report);

// Repeated measurements of one thing.
struct Spread {
  double median = 0.0;
  double low = 0.0;
  double high = 0.0;
};
// At least one value.
Spread SpreadOf(std::vector<double> values);

// Machine (processors, instruction set and width of vectors), version and commit.
std::vector<NamedCell> MachineConditions();

}  // namespace fathom::bench
