// Texts of simulated sequences, and random numbers for them. Used by tests only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/types.h"

namespace fathom {

inline uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15 + b + 0x632BE59BD9B4E019;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// Numbers out of one argument of an operation.
class Draw {
 public:
  explicit Draw(uint32_t seed) : state_(seed) {}
  int64_t Below(int64_t n) {
    state_ = Mix(state_, 1);
    return static_cast<int64_t>(state_ >> 1) % n;
  }

 private:
  uint64_t state_;
};

// Tokens and what stands for their prefixes: hashes[n] of the first n.
struct Text {
  int salt = 0;
  std::vector<TokenId> tokens;
  std::vector<uint64_t> hashes;

  explicit Text(int s = 0) : salt(s), hashes{Mix(77, static_cast<uint64_t>(s))} {}
  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  void Add(TokenId token) {
    tokens.push_back(token);
    hashes.push_back(Mix(hashes.back(), static_cast<uint64_t>(token)));
  }
  // Few continuations, so that sequences meet again.
  void Grow(int64_t end, uint32_t continuation) {
    while (size() < end) {
      Add(static_cast<TokenId>(Mix(continuation, static_cast<uint64_t>(size())) % 50000));
    }
  }
  void Cut(int64_t length) {
    tokens.resize(static_cast<size_t>(length));
    hashes.resize(static_cast<size_t>(length) + 1);
  }
  [[nodiscard]] uint64_t Hash(int64_t length) const { return hashes[static_cast<size_t>(length)]; }
};

}  // namespace fathom
