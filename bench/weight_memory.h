// WeightMemory: random weights that come from memory and not from a cache.
//
// One ring of random codes per format. Every matrix that is asked for is the next piece of its
// format's ring, so a matrix is read again only when the whole ring was: with rings larger than the
// last-level cache each use reads memory, whatever the matrix' size. Matrices overlap; nobody
// writes. Single-threaded but for filling.
#pragma once

#include <array>
#include <cstdint>

#include "backend/device_memory.h"
#include "backend/weights.h"
#include "base/parallel.h"
#include "base/status.h"

namespace fathom::bench {

class WeightMemory {
 public:
  static constexpr int kNumFormats = 4;  // fp8, fp4, bf16, fp32
  // `bytes` in all, shared evenly; a ring takes `memory` when its format is first asked for. `pool`
  // fills it; both must outlive this. For memory that the host cannot write the ring is made beside
  // it and copied.
  WeightMemory(ThreadPool& pool, DeviceMemory& memory, int64_t bytes)
      : pool_(pool), memory_(memory), bytes_(bytes / kNumFormats) {}

  // kInvalidArgument, with `name` and what it needs, where a matrix is larger than a ring;
  // kOutOfMemory where there is no room for the ring.
  Status Reserve(const char* name, DType dtype, int rows, int cols);
  // The next piece. Only for sizes that were reserved.
  [[nodiscard]] WeightView Take(DType dtype, int rows, int cols);

  // Values of one format; scales are apart.
  [[nodiscard]] int64_t ring_bytes() const { return bytes_; }
  // As stored, with scales.
  [[nodiscard]] static int64_t StoredBytes(DType dtype, int64_t rows, int64_t cols);

 private:
  struct Ring {
    DeviceBuffer values;
    DeviceBuffer scales;
    int64_t next_value = 0;  // bytes
    int64_t next_scale = 0;
  };
  template <typename Code>
  Result<DeviceBuffer> Filled(int64_t bytes, Code code);
  [[nodiscard]] int64_t ScaleRingBytes(DType dtype) const;

  ThreadPool& pool_;
  DeviceMemory& memory_;
  int64_t bytes_;
  std::array<Ring, kNumFormats> rings_;
};

}  // namespace fathom::bench
