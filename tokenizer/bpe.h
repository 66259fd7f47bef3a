// Bpe: byte-pair merging of one piece of text, lowest merge number first, leftmost on ties.
//
// A linked list of symbols and a heap of candidate merges: O(n log n) for a piece of n bytes, so a
// megabyte of one letter (which is one piece) costs no more per byte than prose.
// Immutable after construction; any thread may call Encode with a Scratch of its own.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace fathom {

struct MergeRule {
  TokenId left = 0, right = 0;
  TokenId result = 0;
};

class Bpe {
 public:
  // `byte_ids[b]` is the token of the single byte b. `merges` are in order of precedence, with ids
  // >= 0 and no pair twice (the loader checks).
  Bpe(const std::array<TokenId, 256>& byte_ids, std::span<const MergeRule> merges);

  // Memory that Encode needs, kept by the caller so that a text of many pieces allocates it once.
  struct Scratch {
    struct Symbol {
      TokenId id;
      int32_t previous, next;  // index of the neighbour, -1 at the ends
      uint32_t rank;           // merge number of this symbol with the next; kNoRank when none
    };
    std::vector<Symbol> symbols;
    std::vector<uint64_t> heap;  // rank << 32 | index of the left symbol
  };

  // Appends the tokens of `piece`, which is at most 2^31 - 1 bytes.
  void Encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const;

 private:
  static constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
  struct Pair {
    TokenId right;
    uint32_t rank;
  };
  [[nodiscard]] uint32_t RankOf(TokenId left, TokenId right) const;
  void Rerank(Scratch& scratch, int32_t index) const;

  std::array<TokenId, 256> byte_ids_;
  std::vector<TokenId> results_;  // by rank
  // The merges of left token t are pairs_[first_pair_[t], first_pair_[t + 1]), ordered by right
  // token. Searched by bisection: no hashing, which a hostile file could make slow.
  std::vector<uint32_t> first_pair_;
  std::vector<Pair> pairs_;
};

}  // namespace fathom
