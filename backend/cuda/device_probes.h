// DeviceProbes: kernels that do one thing as fast as a GPU can, to know what it could do.
//
// Each call runs its probe once on a stream of its own, waits for it and returns the seconds
// between device events around it. Nothing else should compute on the GPU meanwhile.
// Single-threaded. This header needs no CUDA.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"

namespace fathom::cuda {

class DeviceProbes {
 public:
  // Buffer of the first two probes: kMostBytes, at most a quarter of the free memory;
  // kOutOfMemory when that is less than kLeastBytes.
  static constexpr int64_t kMostBytes = int64_t{4} << 30;
  static constexpr int64_t kLeastBytes = int64_t{256} << 20;
  static constexpr int kLaunches = 1000;

  // `device` as the CUDA runtime counts. kUnavailable without one. For Hopper GPUs: the caller has
  // a CudaBackend on this device.
  static Result<std::unique_ptr<DeviceProbes>> Create(int device = 0);
  ~DeviceProbes();
  DeviceProbes(const DeviceProbes&) = delete;
  DeviceProbes& operator=(const DeviceProbes&) = delete;

  [[nodiscard]] int64_t buffer_bytes() const;
  // Of the second-level cache.
  [[nodiscard]] int64_t cache_bytes() const;

  // Every byte of the buffer, in words of 16.
  Result<double> Read();
  // One half of the buffer into the other: as many bytes are read and written as it has.
  Result<double> Copy();
  // Fused multiply-adds of fp32 in independent chains; two operations each.
  Result<double> Fp32();
  [[nodiscard]] double fp32_operations() const;
  // Products of the matrix unit (wgmma) on random bf16 operands in shared memory, fp32 sums.
  Result<double> Bf16();
  [[nodiscard]] double bf16_operations() const;
  // kLaunches kernels that do nothing, one behind the other.
  Result<double> Launches();

 private:
  struct State;
  explicit DeviceProbes(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace fathom::cuda
