#include "model/step_graphs.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace fathom {
namespace {

struct NamedMode {
  std::string_view name;
  GraphMode mode;
};
constexpr NamedMode kModes[] = {{"NONE", GraphMode::kNone},
                                {"PIECEWISE", GraphMode::kPiecewise},
                                {"FULL", GraphMode::kFull},
                                {"FULL_DECODE_ONLY", GraphMode::kFullDecodeOnly},
                                {"FULL_AND_PIECEWISE", GraphMode::kFullAndPiecewise}};

// Whole steps of shorter sequences are made for this many positions.
constexpr int64_t kLeastLength = 4096;

// Of the step's sequences behind it.
int64_t LongestOf(const StepPlan& plan) {
  int64_t longest = 0;
  for (const SequenceRows& rows : plan.sequences) {
    longest = std::max(longest, int64_t{rows.start} + rows.num_rows);
  }
  return longest;
}

bool IsDecode(const StepPlan& plan) {
  return std::all_of(plan.sequences.begin(), plan.sequences.end(),
                     [](const SequenceRows& rows) { return rows.num_rows == 1; });
}

}  // namespace

std::optional<GraphMode> GraphModeOf(std::string_view name) {
  for (const NamedMode& mode : kModes) {
    if (mode.name == name) return mode.mode;
  }
  return {};
}

std::string_view GraphModeName(GraphMode mode) {
  for (const NamedMode& named : kModes) {
    if (named.mode == mode) return named.name;
  }
  return "";
}

std::vector<int> DefaultGraphSizes(int most) {
  std::vector<int> sizes;
  for (int size = 1; size <= most;) {
    sizes.push_back(size);
    size += size < 16 ? size : size < 64 ? 8 : size < 128 ? 16 : size < 256 ? 32 : 64;
  }
  return sizes;
}

StepGraphs::StepGraphs(RecordsSteps& backend, const GraphOptions& options, int max_rows,
                       int64_t max_positions, int num_pieces)
    : backend_(backend), mode_(options.mode), sizes_(options.sizes), num_pieces_(num_pieces) {
  if (sizes_.empty()) sizes_ = DefaultGraphSizes(std::min(max_rows, kMostRows));
  std::sort(sizes_.begin(), sizes_.end());
  sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  std::erase_if(sizes_, [max_rows](int size) { return size < 1 || size > max_rows; });
  int64_t length = std::min(kLeastLength, max_positions);
  for (; length < max_positions; length *= 2) lengths_.push_back(static_cast<int>(length));
  lengths_.push_back(static_cast<int>(max_positions));
  recordings_.assign(sizes_.size() * (static_cast<size_t>(num_pieces_) + lengths_.size()), kNew);
  const size_t most = sizes_.empty() ? 0 : static_cast<size_t>(sizes_.back());
  token_ids_.reserve(most);
  positions_.reserve(most);
  sequences_.reserve(most);
  for (std::vector<BlockTable>& tables : tables_) tables.reserve(most);
  logits_rows_.resize(most);
  std::iota(logits_rows_.begin(), logits_rows_.end(), 0);
}

StepGraphs::Way StepGraphs::WayOf(const StepPlan& plan) const {
  if (mode_ == GraphMode::kNone || sizes_.empty()) return Way::kDirect;
  const size_t rows = plan.token_ids.size();
  size_t in_sequences = 0;
  for (const SequenceRows& sequence : plan.sequences) {
    // They take a place of their own.
    if (sequence.num_rows < 1) return Way::kDirect;
    in_sequences += static_cast<size_t>(sequence.num_rows);
  }
  if (rows == 0 || in_sequences != rows || rows > static_cast<size_t>(sizes_.back()) ||
      plan.positions.size() != rows || LongestOf(plan) > lengths_.back()) {
    return Way::kDirect;
  }
  const bool decode = IsDecode(plan);
  switch (mode_) {
    case GraphMode::kNone:
      return Way::kDirect;
    case GraphMode::kPiecewise:
      return Way::kPieces;
    case GraphMode::kFull:
      return Way::kWhole;
    case GraphMode::kFullDecodeOnly:
      return decode ? Way::kWhole : Way::kDirect;
    case GraphMode::kFullAndPiecewise:
      return decode ? Way::kWhole : Way::kPieces;
  }
  return Way::kDirect;
}

StepPlan StepGraphs::Pad(const StepPlan& plan, Way way) {
  way_ = way;
  const size_t rows = plan.token_ids.size();
  size_ = static_cast<size_t>(
      std::lower_bound(sizes_.begin(), sizes_.end(), static_cast<int>(rows)) - sizes_.begin());
  const auto size = static_cast<size_t>(sizes_[size_]);
  const auto longest = static_cast<int>(LongestOf(plan));
  length_ = static_cast<size_t>(std::lower_bound(lengths_.begin(), lengths_.end(), longest) -
                                lengths_.begin());

  token_ids_.assign(plan.token_ids.begin(), plan.token_ids.end());
  token_ids_.resize(size, 0);
  positions_.assign(plan.positions.begin(), plan.positions.end());
  positions_.resize(size, 0);
  sequences_.assign(plan.sequences.begin(), plan.sequences.end());
  for (size_t row = rows; row < size; ++row) sequences_.push_back({static_cast<int>(row), 1, 0});
  // A whole step has as many sequences as rows, so that tables are as many as well.
  if (way == Way::kWhole) sequences_.resize(size, SequenceRows());
  StepPlan padded = plan;
  padded.token_ids = token_ids_;
  padded.positions = positions_;
  padded.sequences = sequences_;
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    tables_[c].assign(plan.tables[c].begin(), plan.tables[c].end());
    if (!plan.tables[c].empty()) tables_[c].resize(sequences_.size(), BlockTable());
    padded.tables[c] = tables_[c];
  }
  if (way == Way::kWhole) {
    padded.logits_rows = std::span(logits_rows_).first(size);
    padded.max_length = lengths_[length_];
  }
  return padded;
}

size_t StepGraphs::Place(int piece) const {
  const auto pieces = static_cast<size_t>(num_pieces_);
  if (way_ == Way::kPieces) return size_ * pieces + static_cast<size_t>(piece);
  return sizes_.size() * pieces + size_ * lengths_.size() + length_;
}

}  // namespace fathom
