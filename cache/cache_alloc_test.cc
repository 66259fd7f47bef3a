// Nothing on a token's path allocates: this program counts what operator new gives out while
// sequences are admitted, grow, hit, are copied, evicted and end.
#include <gtest/gtest.h>

#include <random>

#include "base/test_allocations.h"
#include "cache/block_manager.h"

namespace fathom {
namespace {

constexpr CacheDTypes kFp8Fp4 = {CacheDType::kFp8, CacheDType::kFp4};

TEST(CacheAllocations, AreCounted) {
  const int64_t before = num_allocations;
  const std::vector<int> memory(100);
  EXPECT_EQ(num_allocations - before, 1);
  EXPECT_EQ(memory.size(), 100U);
}

// In as much memory as `num_sequences` of the longest length need.
void RunRequests(int64_t num_sequences) {
  const CachePlanner planner(CacheLayout({{0, 4, 128}, 80, 16, 32, 128}, kFp8Fp4));
  constexpr int64_t kMaxPositions = 4000;
  constexpr int64_t kNumTexts = 12;
  const auto manager =
      std::move(BlockManager::Create(
                    planner, planner.BytesFor(num_sequences, kMaxPositions) / planner.slab_bytes(),
                    {4, kMaxPositions, 1000, true})
                    .value());
  std::mt19937 random(1);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  std::vector<std::vector<TokenId>> texts(kNumTexts, std::vector<TokenId>(kMaxPositions));
  std::vector<PrefixKeys> prompt_keys;
  for (std::vector<TokenId>& text : texts) {
    // Beginnings in common, then different.
    for (TokenId& t : text) t = static_cast<TokenId>(&t - text.data());
    for (int64_t p = below(2000); p < kMaxPositions; ++p) {
      text[static_cast<size_t>(p)] = static_cast<TokenId>(random() % 1000);
    }
    prompt_keys.emplace_back(PrefixSeed("m"), "", text);
  }
  // The caller's part: keys with room for all that their sequences may become.
  std::vector<PrefixKeys> keys(4, prompt_keys[0]);
  for (PrefixKeys& k : keys) k.Reserve(kMaxPositions / kBlockPositions);
  PrefixKeys fork_keys = prompt_keys[0];

  int64_t num_steps = 0;
  int64_t num_hits = 0;
  int64_t num_failed = 0;
  int64_t num_copies = 0;
  const int64_t before = num_allocations;
  for (int request = 0; request < 400; ++request) {
    const auto which = static_cast<size_t>(below(kNumTexts));
    const std::span<const TokenId> text = texts[which];
    const int64_t prompt = 1 + below(kMaxPositions - 100);
    const auto keys_of = static_cast<size_t>(request % 4);
    keys[keys_of] = prompt_keys[which];
    keys[keys_of].Truncate(static_cast<int>(prompt / kBlockPositions));
    const PrefixMatch match =
        manager->Match(text.first(static_cast<size_t>(prompt)), keys[keys_of]);
    num_hits += match.position > 0;
    if (!manager->Fits(prompt + 100, match)) ++num_failed;
    const std::optional<SequenceId> id = manager->Admit(match, &keys[keys_of], prompt + 100);
    if (!id) {
      ++num_failed;
      continue;
    }
    bool going = true;
    while (going && manager->length(*id) < prompt) {
      const int64_t length = manager->length(*id);
      const int64_t end = std::min(prompt, length + 1 + below(1000));
      std::array<int64_t, 5> points{};
      size_t num_points = 0;
      for (int64_t p = (length / 256 + 1) * 256; p <= end; p += 256) points[num_points++] = p;
      if (num_points == 0 || points[num_points - 1] < end) points[num_points++] = end;
      going = manager->Extend(*id, end, {.points = std::span(points).first(num_points)});
      if (going) manager->Commit(*id, text);
      ++num_steps;
    }
    for (int i = 0; going && i < 60; ++i) {
      const int64_t end = manager->length(*id) + 1;
      going = manager->Extend(*id, end, {.points = {&end, 1}, .rolling = end});
      if (going) manager->Commit(*id, text);
      ++num_steps;
    }
    if (manager->length(*id) > 0) {
      if (const std::optional<SequenceId> fork = manager->Fork(*id, &fork_keys)) {
        manager->Release(*fork);
      }
      manager->Truncate(*id, manager->length(*id) - 1);
      manager->Keep(*id, text, manager->length(*id));
    }
    num_copies += static_cast<int64_t>(manager->copies().size());
    manager->ClearCopies();
    manager->Release(*id);
    if (request == 300) manager->ClearPrefixes();
  }
  EXPECT_EQ(num_allocations - before, 0);
  EXPECT_GT(num_steps, 10'000);
  EXPECT_GT(num_hits, 50);
  EXPECT_GT(num_copies, 500);
  EXPECT_GT(manager->num_evictions(), 500);
  std::printf("%lld steps, %lld hits, %lld copies, %lld evictions, %lld failed\n",
              static_cast<long long>(num_steps), static_cast<long long>(num_hits),
              static_cast<long long>(num_copies), static_cast<long long>(manager->num_evictions()),
              static_cast<long long>(num_failed));
}

TEST(CacheAllocations, NoneOnATokensPath) { RunRequests(4); }
TEST(CacheAllocations, NoneWhereMemoryIsShort) { RunRequests(1); }

}  // namespace
}  // namespace fathom
