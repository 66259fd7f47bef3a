// BlockManager: memory that Fits and the planner count can also be had, however sequences grow.
#include "cache/block_manager.h"

#include <gtest/gtest.h>

#include <random>

#include "cache/manager_checks.h"

namespace fathom {
namespace {

constexpr CacheDTypes kFp8Fp4 = {CacheDType::kFp8, CacheDType::kFp4};
constexpr CacheDTypes kF32 = {CacheDType::kF32, CacheDType::kF32};

std::unique_ptr<BlockManager> MakeManager(const CachePlanner& planner, int64_t num_slabs,
                                          const BlockManagerOptions& options) {
  auto manager = BlockManager::Create(planner, num_slabs, options);
  EXPECT_TRUE(manager.ok()) << manager.status().ToString();
  return std::move(*manager);
}

std::vector<TokenId> Tokens(int64_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (TokenId& t : tokens) t = static_cast<TokenId>(random() % 100'000);
  return tokens;
}

// A sequence that grows alone to the longest length, in chunks of a few kinds, keeping resume
// points all the way, in exactly the memory that the planner wants for it.
void GrowAlone(const CachePlanner& planner, int64_t max_positions, int max_step, int chunk_kind,
               bool caching) {
  const int64_t num_slabs = planner.BytesFor(1, max_positions) / planner.slab_bytes();
  const auto manager = MakeManager(planner, num_slabs, {2, max_positions, max_step, caching});
  const std::vector<TokenId> tokens = Tokens(max_positions);
  PrefixKeys keys(PrefixSeed("m"), "", std::span(tokens).first(0));
  ASSERT_TRUE(manager->Fits(max_positions, {}));
  const std::optional<SequenceId> id = manager->Admit({}, &keys, max_positions);
  ASSERT_TRUE(id);
  std::mt19937 random(static_cast<uint32_t>(max_step + chunk_kind));
  while (manager->length(*id) < max_positions) {
    const int64_t length = manager->length(*id);
    int64_t n = max_step;
    if (chunk_kind == 1) n = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(max_step));
    if (chunk_kind == 2 && random() % 8 != 0) n = 1;
    const int64_t end = std::min(max_positions, length + n);
    std::vector<int64_t> points;
    for (int64_t p = (length / 256 + 1) * 256; p <= end; p += 256) points.push_back(p);
    if (points.empty() || points.back() != end) points.push_back(end);
    ASSERT_TRUE(manager->Extend(*id, end, {.points = points, .rolling = end}))
        << "from " << length << " to " << end << " of " << max_positions << " in " << num_slabs
        << " slabs";
    manager->Commit(*id, tokens);
  }
}

TEST(BlockManagerFits, ALoneSequenceGrowsToItsLengthInTheMemoryPlannedForIt) {
  const CacheGeometry geometries[] = {
      {{0, 4, 128}, 80, 16, 32, 128}, {{0, 0, 4, 128, 4, 128, 4, 128, 0}, 128, 64, 128, 128, 1},
      {{4, 4}, 80, 16, 32, 8},        {{128}, 512, 64, 128, 128},
      {{0, 4}, 512, 64, 128, 300},    {{0, 4, 128}, 80, 16, 32, 1},
      {{0}, 512, 64, 128, 128},
  };
  for (const CacheGeometry& geometry : geometries) {
    for (const CacheDTypes dtypes : {kFp8Fp4, kF32}) {
      const CachePlanner planner(CacheLayout(geometry, dtypes));
      for (const int64_t max_positions : {1, 100, 257, 1000, 5000, 20'000}) {
        for (const int max_step : {1, 3, 64, 300, 4096}) {
          for (const int chunk_kind : {0, 1, 2}) {
            if (max_step == 1 && (chunk_kind > 0 || max_positions > 5000)) continue;
            for (const bool caching : {false, true}) {
              GrowAlone(planner, max_positions, max_step, chunk_kind, caching);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

// Sequences are admitted when Fits says so, in memory for a few of them. One takes a chunk, others
// one token each, all with resume points; they come and go. No step may ever fail.
TEST(BlockManagerFits, WhatFitsIsPromisedToAllSequencesTogether) {
  const CacheGeometry geometries[] = {
      {{0, 4, 128}, 80, 16, 32, 128}, {{0, 0, 4, 128, 4, 128, 4, 128, 0}, 128, 64, 128, 128, 1},
      {{4, 4}, 80, 16, 32, 8},        {{0, 128}, 512, 64, 128, 300},
      {{0}, 512, 64, 128, 128},
  };
  struct Running {
    SequenceId id;
    int64_t target;
    std::vector<TokenId> tokens;
    std::unique_ptr<PrefixKeys> keys;
  };
  constexpr int64_t kMaxPositions = 3000;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const CachePlanner planner(CacheLayout(geometries[seed % 5], kFp8Fp4));
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
    };
    const int64_t num_slabs =
        planner.BytesFor(1 + below(3), kMaxPositions) / planner.slab_bytes() + below(3);
    const auto manager = MakeManager(planner, num_slabs, {20, kMaxPositions, 700, true});
    std::vector<Running> running;
    int64_t num_admitted = 0;
    int64_t num_together = 0;
    for (int step = 0; step < 1500; ++step) {
      // One of four texts up to somewhere, then something new.
      if (running.empty() || below(4) == 0) {
        Running r;
        r.tokens = Tokens(kMaxPositions, static_cast<uint32_t>(below(4)));
        const auto cut = static_cast<ptrdiff_t>(below(kMaxPositions));
        const std::vector<TokenId> other =
            Tokens(kMaxPositions, static_cast<uint32_t>(100 + below(1000)));
        std::copy(other.begin() + cut, other.end(), r.tokens.begin() + cut);
        r.target = 1 + below(kMaxPositions);
        const std::span<const TokenId> prompt =
            std::span(r.tokens).first(static_cast<size_t>(1 + below(r.target)));
        r.keys = std::make_unique<PrefixKeys>(PrefixSeed("m"), "", prompt);
        const PrefixMatch match = manager->Match(prompt, *r.keys);
        std::optional<SequenceId> id;
        if (manager->Fits(r.target, match)) id = manager->Admit(match, r.keys.get(), r.target);
        // Copies may need a block more than the sequence; from its beginning it needs none.
        if (!id && manager->Fits(r.target, {}) && running.size() < 20) {
          id = manager->Admit({}, r.keys.get(), r.target);
          ASSERT_TRUE(id);
        }
        ASSERT_TRUE(id || !running.empty()) << "alone, everything fits";
        if (id) {
          r.id = *id;
          running.push_back(std::move(r));
          ++num_admitted;
        }
      }
      num_together = std::max(num_together, static_cast<int64_t>(running.size()));
      const auto chunk = static_cast<size_t>(below(static_cast<int64_t>(running.size())));
      std::vector<Running*> stepping;
      for (size_t i = 0; i < running.size(); ++i) {
        Running& r = running[i];
        const int64_t length = manager->length(r.id);
        const int64_t end = std::min(r.target, length + (i == chunk ? 1 + below(700) : 1));
        if (end == length) continue;
        std::vector<int64_t> points;
        for (int64_t p = (length / 256 + 1) * 256; p <= end; p += 256) points.push_back(p);
        if ((points.empty() || points.back() < end) && below(2) == 0) points.push_back(end);
        ASSERT_TRUE(manager->Extend(r.id, end, {.points = points}))
            << "seed " << seed << " step " << step << ": " << length << " to " << end << " of "
            << r.target << ", " << running.size() << " sequences";
        stepping.push_back(&r);
      }
      manager->ClearCopies();
      for (Running* r : stepping) manager->Commit(r->id, r->tokens);
      for (size_t i = 0; i < running.size();) {
        Running& r = running[i];
        if (manager->length(r.id) < r.target) {
          ++i;
          continue;
        }
        manager->Keep(r.id, r.tokens, r.target);
        manager->Release(r.id);
        if (i + 1 < running.size()) std::swap(running[i], running.back());
        running.pop_back();
      }
      std::vector<SequenceId> ids;
      for (const Running& r : running) ids.push_back(r.id);
      if (step % 16 == 0) {
        ASSERT_EQ(ContradictionIn(*manager, ids), "");
      }
    }
    EXPECT_GT(num_admitted, 50);
    EXPECT_GT(num_together, 1);
  }
}

// The planner's figure for one sequence of a million tokens of V4-Flash, to the block.
TEST(BlockManagerFits, AMillionTokensOfFlashTakeWhatThePlannerSays) {
  CacheGeometry flash = {{0, 0}, 512, 64, 128, 128};
  for (int layer = 2; layer < 43; ++layer) flash.ratios.push_back(layer % 2 == 0 ? 4 : 128);
  const CachePlanner planner(CacheLayout(flash, kFp8Fp4));
  constexpr int64_t kMillion = 1 << 20;
  const int64_t num_slabs = planner.BytesFor(1, kMillion) / planner.slab_bytes();
  const auto manager = MakeManager(planner, num_slabs, {1, kMillion, 8192, true});
  ASSERT_TRUE(manager->Fits(kMillion, {}));
  const std::vector<TokenId> tokens = Tokens(kMillion);
  PrefixKeys keys(PrefixSeed("m"), "", {});
  const SequenceId id = *manager->Admit({}, &keys, kMillion);
  const auto used = [&] {
    ClassCounts counts{};
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      counts[c] = manager->pool().Use(static_cast<CacheClass>(c)).in_use;
    }
    return counts;
  };
  for (int64_t end = 8192; end <= kMillion; end += 8192) {
    ASSERT_TRUE(manager->Extend(id, end, {.rolling = -1}));
    manager->Commit(id, tokens);
    // Of the step's memory: all of the sequence, and windows in front of the step and at its end.
    ASSERT_EQ(used()[0], end / 256);
    ASSERT_LE(planner.BlockBytes(used()), planner.BlockBytes(planner.MaxBlocks(1, end)));
  }
  EXPECT_EQ(planner.BlocksAt(kMillion), (ClassCounts{4096, 2, 2, 16}));
  // At the end of the last step, whose window began at a multiple of 128: states of one window.
  EXPECT_EQ(manager->Table(id, CacheClass::kFull).num_blocks, 4096);
  EXPECT_NEAR(static_cast<double>(planner.BlockBytes(used())) / 1e9, 3.77, 0.01);
  EXPECT_LT(static_cast<double>(num_slabs * planner.slab_bytes()) / 1e9, 3.95);
  // Nothing else fits, and all is given back.
  EXPECT_FALSE(manager->Fits(kMillion, {}));
  manager->Release(id);
  EXPECT_EQ(manager->pool().num_free_slabs(), num_slabs);
}

}  // namespace
}  // namespace fathom
