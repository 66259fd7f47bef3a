// SyntheticWriter: makes the tensors of a synthetic checkpoint where a device's weights lie, so
// that no file is read and little crosses the bus.
#pragma once

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "model/weight_copy.h"

namespace fathom {

class SyntheticWriter final : public WeightWriter {
 public:
  // Both must outlive the writer. The backend makes what it can (backend/fills_memory.h); the rest
  // is made on the host and copied.
  SyntheticWriter(const Checkpoint& checkpoint, Backend& backend)
      : checkpoint_(checkpoint), backend_(backend) {}

  Status Write(std::span<const WeightCopy> copies, const LoadProgress& progress) override;

 private:
  Status Write(const SyntheticTensor& tensor, const WeightCopy& copy);

  const Checkpoint& checkpoint_;
  Backend& backend_;
};

}  // namespace fathom
