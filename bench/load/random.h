// Random: numbers that are the same everywhere for a seed; the standard library's distributions
// differ between implementations.
#pragma once

#include <cmath>
#include <cstdint>

namespace fathom::load {

// splitmix64. A value; single-threaded.
class Random {
 public:
  // Streams of one seed are independent of each other.
  Random(uint64_t seed, uint64_t stream) : state_(seed) { state_ = Next() ^ stream; }

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  // low <= result <= high. Slightly uneven for ranges near 2^64, which nobody has.
  int64_t Between(int64_t low, int64_t high) {
    const uint64_t size = static_cast<uint64_t>(high) - static_cast<uint64_t>(low) + 1;
    return low + static_cast<int64_t>(size == 0 ? Next() : Next() % size);
  }
  // Mean 1.
  double Exponential() {
    const double uniform = static_cast<double>(Next() >> 11) * 0x1p-53;  // [0, 1)
    return -std::log1p(-uniform);
  }

 private:
  uint64_t state_;
};

}  // namespace fathom::load
