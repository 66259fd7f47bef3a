#include "cache/reuse_model.h"

#include "cache/cache_layout.h"

namespace fathom {

std::set<uint64_t> ReuseModel::WholeBlocks(const Text& text, int64_t length) {
  std::set<uint64_t> blocks;
  for (int64_t p = kBlockPositions; p <= length; p += kBlockPositions) blocks.insert(text.Hash(p));
  return blocks;
}

void ReuseModel::Add(const Text& text, int64_t position) {
  const auto [point, added] = points_.try_emplace(text.Hash(position));
  if (added) {
    point->second = {WholeBlocks(text, position), false, ++generation_};
  } else {
    point->second.used = true;
  }
}

void ReuseModel::Roll(const Text& text, int64_t position, bool replaces, RollingPoint& rolling) {
  const uint64_t name = text.Hash(position);
  const auto last = points_.find(rolling.name);
  if (replaces && rolling.name != name && last != points_.end() &&
      last->second.generation == rolling.generation && !last->second.used) {
    points_.erase(last);
  }
  rolling = {name, points_[name].generation};
}

std::set<uint64_t> ReuseModel::Blocks() const {
  std::set<uint64_t> blocks;
  for (const auto& [name, point] : points_) {
    blocks.insert(point.blocks.begin(), point.blocks.end());
  }
  return blocks;
}

PrefixMatch ReuseModel::Expected(const Text& prompt, const std::set<uint64_t>& running) const {
  const int64_t limit = prompt.size() - 1;
  PrefixMatch match;
  match.position = limit;
  while (match.position > 0 && !Has(prompt, match.position)) --match.position;
  const std::set<uint64_t> blocks = Blocks();
  int64_t cached = 0;
  for (int64_t p = kBlockPositions; p <= limit; p += kBlockPositions) {
    if (!blocks.contains(prompt.Hash(p)) && !running.contains(prompt.Hash(p))) break;
    cached = p;
  }
  if (cached > match.position) match.junction = cached;
  if (match.position < limit) {
    match.miss = match.junction > 0 ? PrefixMiss::kNoResumePoint : PrefixMiss::kMissingBlock;
  }
  return match;
}

}  // namespace fathom
