// ReuseModel: which prefixes a cache that forgets nothing could continue. Used by tests only.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "cache/prefix_index.h"
#include "cache/simulated_text.h"

namespace fathom {

// The rolling resume point that a sequence made last.
struct RollingPoint {
  uint64_t name = 0;
  uint64_t generation = 0;
};

class ReuseModel {
 public:
  // A resume point after `position` tokens of the text.
  void Add(const Text& text, int64_t position);
  // That point is the sequence's rolling one now. `replaces`: the last one goes unless it was used.
  void Roll(const Text& text, int64_t position, bool replaces, RollingPoint& rolling);
  // Somebody continued from there.
  void Use(const Text& text, int64_t position) { points_[text.Hash(position)].used = true; }
  void Clear() { points_.clear(); }

  [[nodiscard]] bool Has(const Text& text, int64_t position) const {
    return points_.contains(text.Hash(position));
  }
  [[nodiscard]] int64_t num_points() const { return static_cast<int64_t>(points_.size()); }
  // Names of the whole blocks of the first `length` tokens.
  static std::set<uint64_t> WholeBlocks(const Text& text, int64_t length);
  // Whole blocks in front of resume points.
  [[nodiscard]] std::set<uint64_t> Blocks() const;
  // What Match should find, when sequences hold the `running` blocks as well.
  [[nodiscard]] PrefixMatch Expected(const Text& prompt, const std::set<uint64_t>& running) const;

 private:
  struct Point {
    std::set<uint64_t> blocks;
    bool used = false;
    uint64_t generation = 0;
  };
  std::map<uint64_t, Point> points_;
  uint64_t generation_ = 0;
};

}  // namespace fathom
