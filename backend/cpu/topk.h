// The largest of many scores.
//
// A score's key is an unsigned integer that orders like the score (one zero; NaN by its bits). Of a
// long row, one pass takes the maxima of small groups, at least twice as many as are wanted: the
// k-th largest of those is not above the k-th largest score. A second pass collects the indices of
// all scores that reach it, a list somewhat longer than k, and the k-th largest of that list is the
// bound that was looked for. A short row is its own list of maxima. The k-th largest of a few keys
// is found by counting them in equal parts of their range, again and again in the part where it
// lies. What is chosen is unique (equal scores by smaller index), so it cannot depend on how the
// passes are cut.
#pragma once

#include <cstdint>
#include <span>

namespace fathom::cpu {

// ---- Passes (kernels_topk.cc); vectorised

// Writes the keys of the maxima of groups of at most `group` scores; returns how many, at least
// scores.size() / group and at most scores.size().
int64_t GroupMaxima(std::span<const float> scores, int64_t group, uint32_t* keys);

struct KthKey {
  uint32_t key = 0;
  int64_t rank = 0;  // 1 for the first of the equal keys, ...
};
// The k-th largest of `n` keys, 1 <= k <= n; `keys` is left in disorder.
KthKey KthLargest(uint32_t* keys, int64_t n, int64_t k);

// Writes first_index + i for all i whose key is at least `least`, ascending; returns how many. Up
// to kListSlack elements behind them are overwritten.
inline constexpr int kListSlack = 16;
int64_t CollectAtLeast(std::span<const float> scores, uint32_t least, int32_t first_index,
                       int32_t* out);

// ---- Selection (topk.cc)

// Pieces of one selection, which may be worked on at once.
inline constexpr int kMaxTopkPieces = 64;

// Elements that `list` and `keys` of a selection from at most `num_scores` need.
constexpr int64_t TopkListSize(int64_t num_scores) {
  return num_scores + int64_t{kMaxTopkPieces} * kListSlack;
}

// One selection, step by step, so that the caller can run a step's pieces on several threads: what
// Run does on one.
class TopkSelection {
 public:
  // Chooses out.size() of the scores, which are more than that. `list` and `keys` have TopkListSize
  // elements.
  TopkSelection(std::span<const float> scores, std::span<int32_t> out, int32_t* list,
                uint32_t* keys);

  [[nodiscard]] int num_pieces() const { return num_pieces_; }
  void FindMaxima(int piece);
  void FindBound();
  void Collect(int piece);
  // Writes the chosen indices, ascending.
  void Finish();
  // All of it on the calling thread.
  void Run();

 private:
  [[nodiscard]] std::span<const float> Scores(int piece) const;
  // Where a piece's part of `list` and `keys` begins.
  [[nodiscard]] int64_t PieceBegin(int piece) const {
    return piece * (piece_size_ + int64_t{kListSlack});
  }
  // Moves the pieces' parts together; returns their sum.
  template <typename T>
  int64_t Join(T* array) const;

  std::span<const float> scores_;
  std::span<int32_t> out_;
  int32_t* list_;
  uint32_t* keys_;
  int64_t group_ = 1;
  int64_t piece_size_ = 0;  // the last piece is shorter
  int num_pieces_ = 0;
  int64_t counts_[kMaxTopkPieces];  // of each piece: first maxima, then collected indices
  KthKey bound_;
};

}  // namespace fathom::cpu
