// PrefixKeys: names for the prefixes of a token sequence, one per whole block of 256 tokens.
//
//   key[k] = SHA-256(key[k - 1], 256 token ids as little-endian u32, extra)
//
// key[-1] is the seed, which stands for the model (weights, cache formats, rope): two engines with
// the same seed agree on every key. `extra` is the request's cache salt in block 0 and empty
// elsewhere. Sequences with equal keys hold the same tokens under the same salt.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/types.h"

namespace fathom {

using PrefixKey = std::array<uint8_t, 32>;

// SHA-256 of the bytes: how seeds are made.
PrefixKey PrefixSeed(std::string_view bytes);

class PrefixKeys {
 public:
  PrefixKeys() = default;
  // The keys of all whole blocks of `tokens`.
  PrefixKeys(const PrefixKey& seed, std::string_view salt, std::span<const TokenId> tokens);

  [[nodiscard]] int num_blocks() const { return static_cast<int>(blocks_.size()); }
  [[nodiscard]] const PrefixKey& block(int k) const { return blocks_[static_cast<size_t>(k)]; }
  // Names the prefix of no tokens: seed and salt.
  [[nodiscard]] const PrefixKey& root() const { return root_; }

  // Adds the keys of whole blocks that `tokens` (all of the sequence) has and this has not.
  void Extend(std::span<const TokenId> tokens);
  // Forgets the keys of all blocks but the first `num_blocks`.
  void Truncate(int num_blocks) {
    if (num_blocks < this->num_blocks()) blocks_.resize(static_cast<size_t>(num_blocks));
  }
  // Makes room for `num_blocks` keys in all, so that extending allocates nothing.
  void Reserve(int64_t num_blocks) { blocks_.reserve(static_cast<size_t>(num_blocks)); }

 private:
  PrefixKey seed_{};
  PrefixKey root_{};
  std::vector<uint8_t> salt_;
  std::vector<PrefixKey> blocks_;
};

}  // namespace fathom
