// Receipts: results on their way from the device to the host, while it goes on. Needs the CUDA
// runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <span>

#include "backend/cuda/memory.h"
#include "backend/cuda/scratch.h"
#include "backend/runs_behind.h"

namespace fathom::cuda {

// Single-threaded; the device is set by the caller.
class Receipts {
 public:
  explicit Receipts(cudaStream_t stream) : stream_(stream) {}
  ~Receipts();
  Receipts(const Receipts&) = delete;
  Receipts& operator=(const Receipts&) = delete;

  // Room for `bytes` in each. None may be under way.
  Status Create(int64_t bytes);

  // As RunsBehind, with what the device reports by then.
  Result<int> Begin(std::span<const std::byte> first, std::span<const std::byte> second,
                    const DeviceReport* report);
  struct Received {
    std::span<const std::byte> bytes;
    DeviceReport report;
  };
  Result<Received> Wait(int receipt);

 private:
  struct Receipt {
    PinnedBytes pinned;  // a report, then bytes
    cudaEvent_t copied = nullptr;
    size_t bytes = 0;
    bool under_way = false;
  };
  // Of which the bytes begin behind the report.
  static constexpr size_t kReportBytes = 64;
  static_assert(sizeof(DeviceReport) <= kReportBytes);

  cudaStream_t stream_;
  size_t most_bytes_ = 0;
  std::array<Receipt, RunsBehind::kMostReceipts> receipts_;
};

}  // namespace fathom::cuda
