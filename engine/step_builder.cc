#include "engine/step_builder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace fathom {

StepBuilder::StepBuilder(int max_rows, int max_sequences, std::span<const LayerPages> pages)
    : max_rows_(max_rows), max_sequences_(max_sequences) {
  size_t bytes = 0;
  const auto reserve = [&bytes](int count, size_t size, size_t alignment) {
    bytes = (bytes + alignment - 1) / alignment * alignment;
    const size_t offset = bytes;
    bytes += static_cast<size_t>(count) * size;
    return offset;
  };
  // Pointers first: the strictest alignment.
  const size_t tables =
      reserve(kNumCacheClasses * max_sequences, sizeof(BlockTable), alignof(BlockTable));
  const size_t sequences = reserve(max_sequences, sizeof(SequenceRows), alignof(SequenceRows));
  const size_t logits_rows = reserve(max_rows, sizeof(int), alignof(int));
  const size_t token_ids = reserve(max_rows, sizeof(TokenId), alignof(TokenId));
  const size_t positions = reserve(max_rows, sizeof(Position), alignof(Position));
  const size_t sources = reserve(max_sequences, sizeof(TokenSource), alignof(TokenSource));
  buffer_ = std::make_unique<std::byte[]>(bytes);
  tables_ = reinterpret_cast<BlockTable*>(buffer_.get() + tables);
  sequences_ = reinterpret_cast<SequenceRows*>(buffer_.get() + sequences);
  logits_rows_ = reinterpret_cast<int*>(buffer_.get() + logits_rows);
  token_ids_ = reinterpret_cast<TokenId*>(buffer_.get() + token_ids);
  positions_ = reinterpret_cast<Position*>(buffer_.get() + positions);
  sources_ = reinterpret_cast<TokenSource*>(buffer_.get() + sources);
  plan_.pages = pages;
}

const StepPlan& StepBuilder::Build(std::span<const ScheduledRows> rows,
                                   const BlockManager& manager) {
  FATHOM_CHECK(rows.size() <= static_cast<size_t>(max_sequences_), "the scheduler keeps its limit");
  int num_rows = 0;
  size_t num_logits = 0, num_sources = 0;
  for (size_t s = 0; s < rows.size(); ++s) {
    const ScheduledRequest& request = *rows[s].request;
    const int n = rows[s].num_tokens;
    FATHOM_CHECK(num_rows + n <= max_rows_, "the scheduler keeps its budget");
    const auto start = static_cast<Position>(request.computed);
    sequences_[s] = {num_rows, n, start};
    std::copy_n(request.tokens.begin() + start, n, token_ids_ + num_rows);
    std::iota(positions_ + num_rows, positions_ + num_rows + n, start);
    num_rows += n;
    if (request.pending >= 0 && start + n == static_cast<int64_t>(request.tokens.size())) {
      sources_[num_sources++] = {num_rows - 1, request.pending};
    }
    const int num_wanted = rows[s].num_prompt_logits + (rows[s].wants_logits ? 1 : 0);
    std::iota(logits_rows_ + num_logits, logits_rows_ + num_logits + num_wanted,
              num_rows - num_wanted);
    num_logits += static_cast<size_t>(num_wanted);
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      tables_[c * static_cast<size_t>(max_sequences_) + s] =
          manager.Table(request.sequence, static_cast<CacheClass>(c));
    }
  }
  plan_.token_ids = {token_ids_, static_cast<size_t>(num_rows)};
  plan_.positions = {positions_, static_cast<size_t>(num_rows)};
  plan_.sequences = {sequences_, rows.size()};
  plan_.logits_rows = {logits_rows_, num_logits};
  plan_.token_sources = {sources_, num_sources};
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    plan_.tables[c] = {tables_ + c * static_cast<size_t>(max_sequences_), rows.size()};
  }
  return plan_;
}

}  // namespace fathom
