// Reads what a checkpoint's header cannot tell: whether the values themselves are sane.
//
// Checkpoint::Open looks at names, shapes and hash tables; this reads every scale byte and every
// bf16 and fp32 value, that is all of a checkpoint but the fp8 and fp4 codes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/inventory.h"

namespace fathom {

// The ue8m0 scales of one part. A scale is 2^exponent; byte 0 is 2^-127.
struct ScaleRange {
  Part part = Part::kOther;
  bool mtp = false;  // of the MTP blocks
  uint64_t num_scales = 0;
  uint64_t num_zero_bytes = 0;
  int min_exponent = 0;
  int max_exponent = 0;
};

struct VerifyReport {
  std::vector<ScaleRange> scales;  // parts that have scales: main in order of kParts, then MTP
  uint64_t bytes_read = 0;
};

// Called on the calling thread, now and then.
using VerifyProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// kDataLoss lists tensors that hold a scale byte of 255 (no value), NaN or infinity, each with its
// first such element, and files that lost bytes while they were read. `progress` may be empty.
Result<VerifyReport> VerifyValues(const Checkpoint& checkpoint, ThreadPool& pool,
                                  const VerifyProgress& progress);

}  // namespace fathom
