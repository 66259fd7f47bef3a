// MachineLimits: what this machine can read and compute at most, measured between the figures that
// are compared with it.
//
// On a machine that others use too, a limit is worth something beside figures of the same minute
// only, so benchmarks call Measure* again and again. Single-threaded: the benchmark's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "bench/probes.h"
#include "bench/report.h"

namespace fathom::bench {

// As the system says; 0 where it does not.
int64_t LastLevelCacheBytes();

class MachineLimits {
 public:
  // Buffer to read: twice the last-level cache, at least kLeastBytes, at most a quarter of the
  // free memory; kOutOfMemory when that is less than kLeastBytes.
  static constexpr int64_t kLeastBytes = int64_t{64} << 20;
  static Result<std::unique_ptr<MachineLimits>> Create(int num_threads);
  ~MachineLimits();
  MachineLimits(const MachineLimits&) = delete;
  MachineLimits& operator=(const MachineLimits&) = delete;

  // Reads the buffer `passes` times; the best of them in GB/s.
  double MeasureRead(int passes = 2);
  // All rates, once.
  void MeasureCompute();

  // Best so far, in GB/s and in 10^9 operations a second; 0 when not measured or when the processor
  // has no such instruction.
  [[nodiscard]] double read() const;
  [[nodiscard]] double rate(ProbeKind kind) const;
  // Everything measured: median, lowest and highest of the passes.
  [[nodiscard]] ReportTable Table() const;
  [[nodiscard]] int64_t buffer_bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  explicit MachineLimits(int num_threads) : pool_(num_threads) {}

  static constexpr size_t kNumProbes = 3;
  ThreadPool pool_;
  uint64_t* buffer_ = nullptr;
  size_t bytes_ = 0;
  std::array<ComputeProbe, kNumProbes> probes_;
  std::vector<double> reads_;
  std::array<std::vector<double>, kNumProbes> rates_;
};

}  // namespace fathom::bench
