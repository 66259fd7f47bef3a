#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>

#include "backend/cpu/kernels.h"
#include "base/check.h"
#include "bench/commit.h"

namespace fathom::bench {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Cell& cell) {
  return std::visit([](const auto& value) { return Json(value); }, cell);
}

Json ToJson(const std::vector<NamedCell>& cells) {
  Json object = Json::object();
  for (const auto& [name, cell] : cells) object[name] = ToJson(cell);
  return object;
}

// Four significant digits, or all of a whole number.
std::string Text(const Cell& cell) {
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  if (const auto* count = std::get_if<int64_t>(&cell)) return std::to_string(*count);
  const double value = std::get<double>(cell);
  const double size = std::abs(value);
  const int decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

void PrintCells(std::ostream& out, const std::vector<NamedCell>& cells) {
  size_t width = 0;
  for (const auto& [name, cell] : cells) width = std::max(width, name.size());
  for (const auto& [name, cell] : cells) {
    out << "  " << std::left << std::setw(static_cast<int>(width)) << name << "  " << Text(cell)
        << "\n";
  }
}

void PrintTable(std::ostream& out, const ReportTable& table) {
  out << "\n" << table.name << "\n";
  std::vector<size_t> widths;
  for (const std::string& column : table.columns) widths.push_back(column.size());
  for (const std::vector<Cell>& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Text(row[c]).size());
  }
  const auto print = [&](size_t c, const std::string& text, bool left) {
    out << "  " << (left ? std::left : std::right) << std::setw(static_cast<int>(widths[c]))
        << text;
  };
  for (size_t c = 0; c < table.columns.size(); ++c) {
    const bool left = !table.rows.empty() && std::holds_alternative<std::string>(table.rows[0][c]);
    print(c, table.columns[c], left);
  }
  out << "\n";
  for (const std::vector<Cell>& row : table.rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      print(c, Text(row[c]), std::holds_alternative<std::string>(row[c]));
    }
    out << "\n";
  }
}

}  // namespace

std::string ReportJson(const Report& report) {
  Json tables = Json::object();
  for (const ReportTable& table : report.tables) {
    Json rows = Json::array();
    for (const std::vector<Cell>& row : table.rows) {
      FATHOM_CHECK(row.size() == table.columns.size(), "a row has a cell in every column");
      Json object = Json::object();
      for (size_t c = 0; c < row.size(); ++c) object[table.columns[c]] = ToJson(row[c]);
      rows.push_back(std::move(object));
    }
    tables[table.name] = std::move(rows);
  }
  const Json json = {{"bench", report.bench},
                     {"conditions", ToJson(report.conditions)},
                     {"tables", std::move(tables)},
                     {"summary", ToJson(report.summary)}};
  // Model names are whatever a folder is called; what is not UTF-8 is replaced, not thrown at.
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

void PrintReport(std::ostream& out, const Report& report) {
  out << "fathom bench " << report.bench << "\n";
  PrintCells(out, report.conditions);
  for (const ReportTable& table : report.tables) PrintTable(out, table);
  if (report.summary.empty()) return;
  out << "\nsummary\n";
  PrintCells(out, report.summary);
}

Spread SpreadOf(std::vector<double> values) {
  FATHOM_CHECK(!values.empty(), "something was measured");
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

std::vector<NamedCell> MachineConditions() {
  const cpu::VectorUnit unit = cpu::ChosenVectorUnit();
  return {{"version", std::string(kVersion)},
          {"commit", std::string(kCommit)},
          {"processors", int64_t{std::thread::hardware_concurrency()}},
          {"vectors", std::string(unit.name) + ", " + std::to_string(unit.bits) + " bits"}};
}

}  // namespace fathom::bench
