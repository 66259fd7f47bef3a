#include "tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

namespace fathom {

Bpe::Bpe(const std::array<TokenId, 256>& byte_ids, std::span<const MergeRule> merges)
    : byte_ids_(byte_ids) {
  TokenId max_id = *std::max_element(byte_ids.begin(), byte_ids.end());
  for (const MergeRule& merge : merges) max_id = std::max({max_id, merge.left, merge.result});
  std::vector<uint32_t> order(merges.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&merges](uint32_t a, uint32_t b) {
    return std::tie(merges[a].left, merges[a].right) < std::tie(merges[b].left, merges[b].right);
  });
  first_pair_.resize(static_cast<size_t>(max_id) + 2);
  for (const uint32_t rank : order) {
    pairs_.push_back({merges[rank].right, rank});
    first_pair_[static_cast<size_t>(merges[rank].left) + 1] = static_cast<uint32_t>(pairs_.size());
  }
  // Tokens that never stand left have an empty range where the one before ends.
  for (size_t i = 1; i < first_pair_.size(); ++i) {
    first_pair_[i] = std::max(first_pair_[i], first_pair_[i - 1]);
  }
  for (const MergeRule& merge : merges) results_.push_back(merge.result);
}

uint32_t Bpe::RankOf(TokenId left, TokenId right) const {
  const Pair* begin = pairs_.data() + first_pair_[static_cast<size_t>(left)];
  const Pair* end = pairs_.data() + first_pair_[static_cast<size_t>(left) + 1];
  const Pair* it = std::lower_bound(
      begin, end, right, [](const Pair& pair, TokenId value) { return pair.right < value; });
  return it != end && it->right == right ? it->rank : kNoRank;
}

void Bpe::Rerank(Scratch& scratch, int32_t index) const {
  Scratch::Symbol& symbol = scratch.symbols[static_cast<size_t>(index)];
  symbol.rank = symbol.next < 0
                    ? kNoRank
                    : RankOf(symbol.id, scratch.symbols[static_cast<size_t>(symbol.next)].id);
  if (symbol.rank == kNoRank) return;
  scratch.heap.push_back((static_cast<uint64_t>(symbol.rank) << 32) | static_cast<uint32_t>(index));
}

void Bpe::Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  if (piece.empty()) return;
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const auto num_bytes = static_cast<int32_t>(piece.size());
  symbols.resize(piece.size());
  heap.clear();
  for (int32_t i = num_bytes - 1; i >= 0; --i) {
    const auto byte = static_cast<uint8_t>(piece[static_cast<size_t>(i)]);
    symbols[static_cast<size_t>(i)] = {byte_ids_[byte], i - 1, i + 1 < num_bytes ? i + 1 : -1,
                                       kNoRank};
    Rerank(scratch, i);
  }
  const std::greater<> lowest_first;
  std::make_heap(heap.begin(), heap.end(), lowest_first);
  const auto rerank = [&](int32_t index) {
    const size_t before = heap.size();
    Rerank(scratch, index);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), lowest_first);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), lowest_first);
    const auto rank = static_cast<uint32_t>(heap.back() >> 32);
    const auto index = static_cast<int32_t>(heap.back() & 0xFFFFFFFFu);
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(index)];
    // A neighbour's merge made this candidate stale: the symbol is gone (kNoRank) or pairs
    // otherwise.
    if (left.rank != rank) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.id = results_[rank];
    left.next = right.next;
    right.rank = kNoRank;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = index;
    rerank(index);
    if (left.previous >= 0) rerank(left.previous);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    out.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace fathom
