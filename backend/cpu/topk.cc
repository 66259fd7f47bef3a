#include "backend/cpu/topk.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace fathom::cpu {
namespace {

// Enough for a thread to be worth it.
constexpr int64_t kMinPiece = 16384;

uint32_t Key(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // one zero only
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

TopkSelection::TopkSelection(std::span<const float> scores, std::span<int32_t> out, int32_t* list,
                             uint32_t* keys)
    : scores_(scores), out_(out), list_(list), keys_(keys) {
  const auto n = static_cast<int64_t>(scores.size());
  group_ = static_cast<int64_t>(std::bit_floor(scores.size() / (2 * out.size()) | 1));
  piece_size_ = std::max(kMinPiece, (n + kMaxTopkPieces - 1) / kMaxTopkPieces);
  num_pieces_ = static_cast<int>((n + piece_size_ - 1) / piece_size_);
}

std::span<const float> TopkSelection::Scores(int piece) const {
  const auto begin = static_cast<size_t>(piece * piece_size_);
  return scores_.subspan(begin, std::min(static_cast<size_t>(piece_size_), scores_.size() - begin));
}

template <typename T>
int64_t TopkSelection::Join(T* array) const {
  int64_t n = counts_[0];
  for (int p = 1; p < num_pieces_; ++p) {
    std::memmove(array + n, array + PieceBegin(p), static_cast<size_t>(counts_[p]) * sizeof(T));
    n += counts_[p];
  }
  return n;
}

void TopkSelection::FindMaxima(int piece) {
  counts_[piece] = GroupMaxima(Scores(piece), group_, keys_ + PieceBegin(piece));
}

void TopkSelection::FindBound() {
  bound_ = KthLargest(keys_, Join(keys_), static_cast<int64_t>(out_.size()));
}

void TopkSelection::Collect(int piece) {
  counts_[piece] =
      CollectAtLeast(Scores(piece), bound_.key, static_cast<int32_t>(piece * piece_size_),
                     list_ + PieceBegin(piece));
}

void TopkSelection::Finish() {
  const int64_t n = Join(list_);
  const auto key = [&](int64_t i) { return Key(scores_[static_cast<size_t>(list_[i])]); };
  if (group_ > 1) {
    for (int64_t i = 0; i < n; ++i) keys_[i] = key(i);
    bound_ = KthLargest(keys_, n, static_cast<int64_t>(out_.size()));
  }
  // All above the bound, and the first of those on it.
  size_t num_out = 0;
  for (int64_t i = 0; num_out < out_.size(); ++i) {
    const uint32_t k = key(i);
    if (k < bound_.key || (k == bound_.key && bound_.rank-- <= 0)) continue;
    out_[num_out++] = list_[i];
  }
}

void TopkSelection::Run() {
  for (int p = 0; p < num_pieces_; ++p) FindMaxima(p);
  FindBound();
  for (int p = 0; p < num_pieces_; ++p) Collect(p);
  Finish();
}

}  // namespace fathom::cpu
