// MachineLimits: those of the host, by its processors' threads.
//
// On a machine that others use too, a limit is worth something beside figures of the same minute
// only. Single-threaded: the benchmark's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "bench/limits.h"
#include "bench/probes.h"

namespace fathom::bench {

// As the system says; 0 where it does not.
int64_t LastLevelCacheBytes();

class MachineLimits final : public Limits {
 public:
  // Buffer to read: twice the last-level cache, at least kLeastBytes, at most a quarter of the
  // free memory; kOutOfMemory when that is less than kLeastBytes.
  static constexpr int64_t kLeastBytes = int64_t{64} << 20;
  static Result<std::unique_ptr<MachineLimits>> Create(int num_threads);
  ~MachineLimits() override;

  Result<double> MeasureRead(int passes) override;
  Status MeasureCompute() override;

  // Best so far, in GB/s and in 10^9 operations a second; 0 when not measured or when the processor
  // has no such instruction.
  [[nodiscard]] double read() const;
  [[nodiscard]] double rate(ProbeKind kind) const;
  [[nodiscard]] double fp32() const override { return rate(ProbeKind::kFp32Fma); }
  [[nodiscard]] int64_t buffer_bytes() const override { return static_cast<int64_t>(bytes_); }
  [[nodiscard]] int64_t cache_bytes() const override { return LastLevelCacheBytes(); }
  [[nodiscard]] ReportTable Table() const override;

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
