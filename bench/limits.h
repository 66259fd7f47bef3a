// Limits: what the machine or the device that computes can read and compute at most, measured
// between the figures that are compared with it.
//
// Whatever else uses a machine changes its limits by the minute, so benchmarks measure again and
// again. Single-threaded: the benchmark's.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/report.h"

namespace fathom::bench {

class Limits {
 public:
  Limits() = default;
  virtual ~Limits() = default;
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;

  // Reads a buffer larger than every cache `passes` times; the best of them in GB/s.
  virtual Result<double> MeasureRead(int passes) = 0;
  // All rates, once.
  virtual Status MeasureCompute() = 0;

  // Best so far, in 10^9 fp32 operations a second; 0 when not measured or not there.
  [[nodiscard]] virtual double fp32() const = 0;
  [[nodiscard]] virtual int64_t buffer_bytes() const = 0;
  // Of the last cache in front of that memory; 0 where nobody says.
  [[nodiscard]] virtual int64_t cache_bytes() const = 0;
  // Everything measured: median, lowest and highest of the passes.
  [[nodiscard]] virtual ReportTable Table() const = 0;
};

// A row of such a table. No values: zeros.
struct LimitRow {
  const char* limit;
  const char* by;
  const char* unit;
  const std::vector<double>& values;
};
ReportTable LimitsTable(const std::vector<LimitRow>& rows);

}  // namespace fathom::bench
