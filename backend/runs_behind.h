// Backends whose host may begin a step while an earlier one is still under way.
//
// What the earlier step sampled is taken by the later one where it lies, and comes to the host in
// the background. Apart from Backend because only those with a device of their own gain by it;
// asked for by RunsBehindOf.
#pragma once

#include <cstddef>
#include <span>

#include "backend/backend.h"
#include "backend/step_plan.h"
#include "base/status.h"

namespace fathom {

class RunsBehind {
 public:
  // Results on their way to the host at a time.
  static constexpr int kMostReceipts = 2;

  RunsBehind() = default;
  virtual ~RunsBehind() = default;
  RunsBehind(const RunsBehind&) = delete;
  RunsBehind& operator=(const RunsBehind&) = delete;

  // Operations on the plan that was begun last see tokens[sources[i].sampled] as the id of the row
  // sources[i].row, as it is when all that was called before is done. Between BeginStep and the
  // plan's first operation. Ids are not checked: they must be some of the vocabulary.
  virtual Status PlaceTokens(std::span<const TokenSource> sources,
                             TensorView<const int32_t> tokens) = 0;
  // Begins to bring `first` and `second` (memory() of the backend, the second may be empty; at most
  // 8 bytes per row of BackendLimits::max_rows together) to the host, as they are when all that was
  // called before is done. The number of the receipt; kInvalidArgument where kMostReceipts are not
  // received yet.
  virtual Result<int> BeginReceive(std::span<const std::byte> first,
                                   std::span<const std::byte> second) = 0;
  // Waits for that alone; the bytes, one behind the other, stay until a BeginReceive gives the
  // number again. Errors as of Synchronize, of what was called before it was begun; the receipt is
  // done with then, too.
  virtual Result<std::span<const std::byte>> Receive(int receipt) = 0;
};

// nullptr where the backend does not.
inline RunsBehind* RunsBehindOf(Backend& backend) { return dynamic_cast<RunsBehind*>(&backend); }

}  // namespace fathom
