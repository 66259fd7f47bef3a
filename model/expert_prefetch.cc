#include "model/expert_prefetch.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

using Bytes = std::span<const std::byte>;

Bytes DataOf(const WeightView& w) {
  return {static_cast<const std::byte*>(w.data),
          static_cast<size_t>(ValueBytes(w.dtype, w.rows, w.cols))};
}

Bytes ScalesOf(const WeightView& w) {
  if (w.scale == nullptr) return {};
  return std::as_bytes(
      std::span(w.scale, static_cast<size_t>(ScaleBytes(w.dtype, w.rows, w.cols))));
}

// In order of address; what lies closer than a page is one range, since whole pages are read.
std::vector<Bytes> Joined(std::vector<Bytes> ranges) {
  constexpr std::ptrdiff_t kPageBytes = 4096;
  std::erase_if(ranges, [](Bytes range) { return range.empty(); });
  std::sort(ranges.begin(), ranges.end(), [](Bytes a, Bytes b) { return a.data() < b.data(); });
  std::vector<Bytes> joined;
  for (const Bytes range : ranges) {
    if (!joined.empty()) {
      Bytes& last = joined.back();
      const std::byte* const end = last.data() + last.size();
      if (range.data() >= end && range.data() - end < kPageBytes) {
        last = {last.data(), range.data() + range.size()};
        continue;
      }
    }
    joined.push_back(range);
  }
  return joined;
}

}  // namespace

ExpertPrefetch::ExpertPrefetch(const ModelWeights& weights, uint64_t max_bytes, PageHints hints)
    : weights_(weights), max_bytes_(max_bytes), hints_(std::move(hints)) {
  for (const LayerWeights& layer : weights.layers) {
    std::vector<Expert>& experts = layers_.emplace_back();
    for (const ExpertWeights& w : layer.ffn.routed) {
      Expert& expert = experts.emplace_back();
      expert.ranges = Joined({DataOf(w.w1), ScalesOf(w.w1), DataOf(w.w2), ScalesOf(w.w2),
                              DataOf(w.w3), ScalesOf(w.w3)});
      for (const Bytes range : expert.ranges) expert.bytes += range.size();
    }
  }
}

bool ExpertPrefetch::AllInMemory() const {
  for (const std::vector<Expert>& experts : layers_) {
    for (const Expert& expert : experts) {
      if (!std::all_of(expert.ranges.begin(), expert.ranges.end(), hints_.in_memory)) return false;
    }
  }
  return true;
}

void ExpertPrefetch::BeginStep(std::span<const TokenId> token_ids) {
  BeginRound();
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const TensorView<const int64_t>& table = weights_.layers[layer].ffn.hash_table;
    if (table.data() == nullptr) continue;
    for (const TokenId token : token_ids) {
      // Ids are the caller's; operations refuse what is not in the vocabulary.
      if (token < 0 || token >= table.dim(0)) continue;
      for (const int64_t expert : table.row(token)) Want(layer, expert);
    }
  }
}

void ExpertPrefetch::Routed(int layer, TensorView<const int32_t> experts) {
  const auto index = static_cast<size_t>(layer);
  if (weights_.layers[index].ffn.hash_table.data() != nullptr) return;
  BeginRound();
  for (int64_t row = 0; row < experts.dim(0); ++row) {
    for (const int32_t expert : experts.row(row)) Want(index, expert);
  }
}

void ExpertPrefetch::BeginRound() {
  ++round_;
  bytes_left_ = max_bytes_;
}

void ExpertPrefetch::Want(size_t layer, int64_t expert) {
  Expert& wanted = layers_[layer][static_cast<size_t>(expert)];
  if (wanted.asked == round_) return;
  wanted.asked = round_;
  if (wanted.bytes > bytes_left_) return;
  bool any = false;
  for (const Bytes range : wanted.ranges) {
    // Asking for pages that are there costs about as much as reading them in.
    if (hints_.in_memory(range)) continue;
    hints_.will_need(range);
    any = true;
  }
  if (any) bytes_left_ -= wanted.bytes;
}

}  // namespace fathom
