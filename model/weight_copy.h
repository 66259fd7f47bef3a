// Bringing a model's tensors to where its operations read them.
//
// Used once, by the thread that loads (ModelWeights::MoveTo).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "backend/device_memory.h"
#include "base/status.h"

namespace fathom {

// Told while weights are read, by the thread that loads.
using LoadProgress = std::function<void(uint64_t done, uint64_t total)>;

// One tensor's way.
struct WeightCopy {
  std::span<const std::byte> from;  // the checkpoint's
  std::byte* to = nullptr;          // as many bytes inside a buffer of `memory`
  DeviceMemory* memory = nullptr;
};

class WeightWriter {
 public:
  WeightWriter() = default;
  virtual ~WeightWriter() = default;
  WeightWriter(const WeightWriter&) = delete;
  WeightWriter& operator=(const WeightWriter&) = delete;

  // All bytes are in their places when it returns. Neighbours in the list should be neighbours in
  // memory. `progress` may be absent. Errors are those of copies; some bytes are there then.
  virtual Status Write(std::span<const WeightCopy> copies, const LoadProgress& progress) = 0;
};

// Copies from the host's memory, in pieces of some megabytes: threads of its own read the next ones
// (files that are mapped are read from the disk there) while one is on its way. What goes to memory
// that the host reaches is copied by those threads alone.
class CopyingWriter final : public WeightWriter {
 public:
  // Pieces wait in buffers of `staging`, memory that the host reaches; copies to a device are
  // faster from page-locked one. It must outlive the writer.
  explicit CopyingWriter(DeviceMemory& staging) : staging_(staging) {}
  // With pieces of other sizes, for tests; at least 1 byte.
  CopyingWriter(DeviceMemory& staging, int64_t piece_bytes)
      : staging_(staging), piece_bytes_(piece_bytes) {}

  Status Write(std::span<const WeightCopy> copies, const LoadProgress& progress) override;

 private:
  DeviceMemory& staging_;
  int64_t piece_bytes_ = int64_t{16} << 20;
};

}  // namespace fathom
