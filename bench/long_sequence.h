// LongSequence: one sequence that reaches depths which would take hours to compute.
//
// Only its first tokens are computed; the pages behind them repeat their entries
// (SequenceRunner::Repeat), so that index scores differ and the choice among them is real work.
// Single-threaded.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {

class LongSequence {
 public:
  // Computes in chunks of `max_rows`, up to `computed` tokens (whole blocks), and repeats then.
  LongSequence(SequenceRunner& runner, int vocab_size, int max_rows, int64_t computed);

  // Makes the sequence `position` tokens long; not less than it is.
  Status GoTo(int64_t position);
  // Milliseconds of a step of one token with logits.
  Result<double> Decode(ForwardObserver* observer = nullptr);

 private:
  [[nodiscard]] const TokenId& At(int64_t position) const {
    return tokens_[static_cast<size_t>(position % computed_)];
  }
  Status Compute(int64_t end);

  SequenceRunner& runner_;
  const std::vector<TokenId> tokens_;
  const int max_rows_;
  const int64_t computed_;
  std::vector<TokenId> chunk_;
  std::vector<float> logits_;
};

}  // namespace fathom::bench
