#include "bench/long_sequence.h"

#include <algorithm>
#include <chrono>

#include "bench/workload.h"

namespace fathom::bench {

LongSequence::LongSequence(SequenceRunner& runner, int vocab_size, int max_rows, int64_t computed)
    : runner_(runner),
      tokens_(SyntheticTokens(0, computed, vocab_size)),
      max_rows_(max_rows),
      computed_(computed),
      logits_(static_cast<size_t>(vocab_size)) {}

Status LongSequence::GoTo(int64_t position) {
  FATHOM_RETURN_IF_ERROR(Compute(std::min(position, computed_)));
  const int64_t whole = position / kBlockPositions * kBlockPositions;
  const int64_t next = (runner_.length() + kBlockPositions - 1) / kBlockPositions * kBlockPositions;
  if (position > computed_ && whole > next) {
    FATHOM_RETURN_IF_ERROR(Compute(next));
    FATHOM_RETURN_IF_ERROR(runner_.Repeat(whole - next));
  }
  return Compute(position);
}

Result<double> LongSequence::Decode(ForwardObserver* observer) {
  const auto begin = std::chrono::steady_clock::now();
  FATHOM_RETURN_IF_ERROR(
      runner_.Step({&At(runner_.length()), 1}, SequenceRunner::Logits::kLast, logits_, observer));
  return MillisecondsSince(begin);
}

Status LongSequence::Compute(int64_t end) {
  while (runner_.length() < end) {
    chunk_.clear();
    const int64_t last = std::min<int64_t>(end, int64_t{runner_.length()} + max_rows_);
    for (int64_t p = runner_.length(); p < last; ++p) chunk_.push_back(At(p));
    FATHOM_RETURN_IF_ERROR(runner_.Step(chunk_, SequenceRunner::Logits::kNone, {}));
  }
  return OkStatus();
}

}  // namespace fathom::bench
