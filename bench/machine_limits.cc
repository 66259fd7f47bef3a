#include "bench/machine_limits.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>

#include "engine/cache_sizing.h"

namespace fathom::bench {
namespace {

constexpr size_t kTaskBytes = size_t{2} << 20;
constexpr int kProbeCalls = 32;  // of each thread

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Best(const std::vector<double>& values) {
  return values.empty() ? 0.0 : *std::max_element(values.begin(), values.end());
}

}  // namespace

int64_t LastLevelCacheBytes() {
  int64_t bytes = 0;
#if defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
#endif
  return std::max<int64_t>(bytes, 0);
}

Result<std::unique_ptr<MachineLimits>> MachineLimits::Create(int num_threads) {
  std::unique_ptr<MachineLimits> limits(new MachineLimits(num_threads));
  constexpr int64_t kLikelyCache = int64_t{32} << 20;  // where the system does not say
  const int64_t cache = LastLevelCacheBytes();
  int64_t bytes = std::max(kLeastBytes, 2 * (cache > 0 ? cache : kLikelyCache));
  const int64_t free = FreeHostMemory();
  if (free > 0) bytes = std::min(bytes, free / 4);
  bytes -= bytes % static_cast<int64_t>(kTaskBytes);
  if (bytes < kLeastBytes) {
    return OutOfMemory("the read bandwidth is measured over at least " +
                       std::to_string(kLeastBytes) + " bytes, a quarter of the free memory is " +
                       std::to_string(free / 4));
  }
  limits->bytes_ = static_cast<size_t>(bytes);
  void* memory =
      mmap(nullptr, limits->bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return OutOfMemory("cannot reserve " + std::to_string(bytes) +
                       " bytes to measure the read bandwidth");
  }
  limits->buffer_ = static_cast<uint64_t*>(memory);
  // A limit is what can be had: with few page table walks. Refused on some systems; then without.
  static_cast<void>(madvise(memory, limits->bytes_, MADV_HUGEPAGE));
  // Written once, or every page would be the same page of zeros.
  limits->pool_.ParallelFor(bytes / static_cast<int64_t>(kTaskBytes), [&](int64_t task) {
    uint64_t* words = limits->buffer_ + static_cast<size_t>(task) * (kTaskBytes / 8);
    std::fill(words, words + kTaskBytes / 8, static_cast<uint64_t>(task) + 1);
  });
  for (size_t i = 0; i < kNumProbes; ++i) {
    limits->probes_[i] = FindProbe(static_cast<ProbeKind>(i));
  }
  return limits;
}

MachineLimits::~MachineLimits() {
  if (buffer_ != nullptr) munmap(buffer_, bytes_);
}

Result<double> MachineLimits::MeasureRead(int passes) {
  double best = 0.0;
  std::atomic<uint64_t> sum{0};
  for (int pass = 0; pass < passes; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool_.ParallelFor(static_cast<int64_t>(bytes_ / kTaskBytes), [&](int64_t task) {
      // Relaxed: a number that nobody reads, so that the loop is not left out.
      sum.fetch_add(ReadWords(buffer_ + static_cast<size_t>(task) * (kTaskBytes / 8), kTaskBytes),
                    std::memory_order_relaxed);
    });
    const double gb_per_s = static_cast<double>(bytes_) / SecondsSince(begin) * 1e-9;
    best = std::max(best, gb_per_s);
    reads_.push_back(gb_per_s);
  }
  return best;
}

Status MachineLimits::MeasureCompute() {
  for (size_t i = 0; i < kNumProbes; ++i) {
    const ComputeProbe& probe = probes_[i];
    if (probe.run == nullptr) continue;
    const int64_t calls = int64_t{kProbeCalls} * pool_.num_threads();
    const auto begin = std::chrono::steady_clock::now();
    pool_.ParallelFor(calls, [&](int64_t) { probe.run(); });
    rates_[i].push_back(static_cast<double>(calls * probe.operations) / SecondsSince(begin) * 1e-9);
  }
  return OkStatus();
}

double MachineLimits::read() const { return Best(reads_); }

double MachineLimits::rate(ProbeKind kind) const { return Best(rates_[static_cast<size_t>(kind)]); }

ReportTable MachineLimits::Table() const {
  const auto by = [this](size_t i) {
    return probes_[i].run != nullptr ? probes_[i].instruction : "no instruction";
  };
  return LimitsTable({{"read", "anonymous memory", "gb_per_s", reads_},
                      {"fp32", by(0), "gflop_per_s", rates_[0]},
                      {"bf16", by(1), "gflop_per_s", rates_[1]},
                      {"int8", by(2), "gop_per_s", rates_[2]}});
}

}  // namespace fathom::bench
