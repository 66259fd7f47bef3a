#include "bench/limits.h"

#include <string>

namespace fathom::bench {

ReportTable LimitsTable(const std::vector<LimitRow>& rows) {
  ReportTable table{
      "machine limits", {"limit", "by", "unit", "median", "low", "high", "passes"}, {}};
  for (const LimitRow& row : rows) {
    const Spread spread = row.values.empty() ? Spread{} : SpreadOf(row.values);
    table.rows.push_back({std::string(row.limit), std::string(row.by), std::string(row.unit),
                          spread.median, spread.low, spread.high,
                          static_cast<int64_t>(row.values.size())});
  }
  return table;
}

}  // namespace fathom::bench
