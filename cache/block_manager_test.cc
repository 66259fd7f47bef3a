// BlockManager: what its header promises, one promise per test. Random histories are in
// block_manager_property_test.cc, memory in block_manager_fits_test.cc.
#include "cache/block_manager.h"

#include <gtest/gtest.h>

#include <random>

#include "cache/manager_checks.h"

namespace fathom {
namespace {

constexpr CacheDTypes kFp8Fp4 = {CacheDType::kFp8, CacheDType::kFp4};

std::vector<TokenId> Tokens(int64_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (TokenId& t : tokens) t = static_cast<TokenId>(random() % 100'000);
  return tokens;
}
std::vector<TokenId> Join(std::span<const TokenId> a, std::span<const TokenId> b) {
  std::vector<TokenId> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

struct Client {
  SequenceId id = -1;
  std::vector<TokenId> tokens;
  std::unique_ptr<PrefixKeys> keys;
  PrefixMatch match;
};

class BlockManagerTest : public testing::Test {
 protected:
  void Create(int64_t num_slabs, bool prefix_caching = true) {
    manager_ = std::move(
        BlockManager::Create(planner_, num_slabs, {8, 4000, 2000, prefix_caching}).value());
  }
  PrefixMatch Match(std::span<const TokenId> tokens, std::string_view salt = "") const {
    return manager_->Match(tokens, PrefixKeys(seed_, salt, tokens));
  }
  // A sequence of a prompt, from where it hits.
  Client Start(std::vector<TokenId> tokens) {
    Client client;
    client.tokens = std::move(tokens);
    client.keys = std::make_unique<PrefixKeys>(seed_, "", client.tokens);
    client.match = manager_->Match(client.tokens, *client.keys);
    const auto id = manager_->Admit(client.match, client.keys.get(),
                                    static_cast<int64_t>(client.tokens.size()));
    EXPECT_TRUE(id);
    client.id = id.value_or(-1);
    return client;
  }
  void Step(Client& client, int64_t end, const StepKeeps& keeps = {}) {
    ASSERT_TRUE(manager_->Extend(client.id, end, keeps));
    manager_->Commit(client.id, client.tokens);
  }
  // Computes a prompt and ends, keeping a point at `keep`.
  void RunPrompt(const std::vector<TokenId>& tokens, int64_t keep) {
    Client client = Start(tokens);
    const auto size = static_cast<int64_t>(tokens.size());
    if (manager_->length(client.id) < size) {
      Step(client, size, {.points = std::span(&keep, keep > manager_->length(client.id) ? 1 : 0)});
    }
    manager_->Release(client.id);
  }
  [[nodiscard]] int64_t InUse(CacheClass c) const { return manager_->pool().Use(c).in_use; }
  [[nodiscard]] int32_t Number(const Client& client, CacheClass c, int64_t logical) const {
    const BlockTable table = manager_->Table(client.id, c);
    if (logical < table.first || logical >= table.first + table.num_blocks) return kNoBlock;
    return table.blocks[logical - table.first];
  }

  const PrefixKey seed_ = PrefixSeed("m");
  const CachePlanner planner_{CacheLayout({{0, 4, 128}, 80, 16, 32, 128}, kFp8Fp4)};
  std::unique_ptr<BlockManager> manager_;
};

constexpr CacheClass kAll[] = {CacheClass::kFull, CacheClass::kSwa, CacheClass::kState4,
                               CacheClass::kState128};

TEST_F(BlockManagerTest, ARepeatedPromptComputesItsLastTokenOnly) {
  Create(60);
  const std::vector<TokenId> prompt = Tokens(1000);
  RunPrompt(prompt, 999);
  for (const CacheClass c : kAll) EXPECT_EQ(InUse(c), 0);
  Client again = Start(prompt);
  EXPECT_EQ(again.match.position, 999);
  EXPECT_EQ(again.match.miss, PrefixMiss::kNone);
  EXPECT_EQ(manager_->length(again.id), 999);
  // 999 lies inside a block of every class: exactly these are copied, from what stays cached.
  ASSERT_EQ(manager_->copies().size(), 4U);
  for (const BlockCopy& copy : manager_->copies()) {
    const int64_t logical = 999 / CacheLayout::PositionsPerBlock(copy.cache_class);
    EXPECT_EQ(copy.to, Number(again, copy.cache_class, logical));
    EXPECT_NE(copy.to, copy.from);
    EXPECT_EQ(manager_->pool().leases(manager_->pool().FromNumber(copy.to)), 0);
    EXPECT_EQ(manager_->pool().leases(manager_->pool().FromNumber(copy.from)), 1);
  }
  EXPECT_EQ(InUse(CacheClass::kFull), 4);
  EXPECT_EQ(InUse(CacheClass::kSwa), 3);
  EXPECT_EQ(InUse(CacheClass::kState4), 2);
  EXPECT_EQ(InUse(CacheClass::kState128), 13);
  // A second one shares what is whole.
  const Client third = Start(prompt);
  EXPECT_EQ(third.match.position, 999);
  EXPECT_EQ(InUse(CacheClass::kFull), 5);
  EXPECT_EQ(Number(third, CacheClass::kFull, 2), Number(again, CacheClass::kFull, 2));
  EXPECT_NE(Number(third, CacheClass::kFull, 3), Number(again, CacheClass::kFull, 3));
}

TEST_F(BlockManagerTest, TheNextTurnGoesOnAtTheExactToken) {
  Create(60);
  const std::vector<TokenId> first = Tokens(1037);
  Client client = Start(first);
  Step(client, 1000);
  for (int64_t p = 1001; p <= 1037; ++p) Step(client, p);
  EXPECT_TRUE(manager_->Keep(client.id, client.tokens, 1037));
  // Cut where an answer's stop string ended, while its window is still held.
  EXPECT_TRUE(manager_->Keep(client.id, client.tokens, 1036));
  EXPECT_FALSE(manager_->Keep(client.id, client.tokens, 700)) << "its window is gone";
  manager_->Release(client.id);
  const std::vector<TokenId> more = Tokens(100, 2);
  EXPECT_EQ(Match(Join(first, more)).position, 1037);
  EXPECT_EQ(Match(Join(std::span(first).first(1036), more)).position, 1036);
  EXPECT_EQ(Match(Join(std::span(first).first(1035), more)).position, 0);
  EXPECT_EQ(Match(Join(first, more), "salt").position, 0);
}

TEST_F(BlockManagerTest, AnAlignedHitCopiesNothing) {
  Create(60);
  const std::vector<TokenId> prompt = Tokens(1000);
  RunPrompt(prompt, 768);
  Client again = Start(prompt);
  EXPECT_EQ(again.match.position, 768);
  EXPECT_EQ(again.match.miss, PrefixMiss::kMissingBlock);
  EXPECT_TRUE(manager_->copies().empty());
  EXPECT_EQ(InUse(CacheClass::kFull), 3);
  EXPECT_EQ(InUse(CacheClass::kSwa), 2);
  EXPECT_EQ(InUse(CacheClass::kState4), 1);
  EXPECT_EQ(InUse(CacheClass::kState128), 0) << "every row is written before it is read";
}

TEST_F(BlockManagerTest, EqualBlocksThatTwoSequencesComputedBecomeOne) {
  Create(60);
  const std::vector<TokenId> prompt = Tokens(600);
  Client a = Start(prompt);
  Client b = Start(prompt);
  ASSERT_TRUE(manager_->Extend(a.id, 600));
  ASSERT_TRUE(manager_->Extend(b.id, 600));
  EXPECT_EQ(InUse(CacheClass::kFull), 6);
  manager_->Commit(a.id, a.tokens);
  manager_->Commit(b.id, b.tokens);
  EXPECT_EQ(InUse(CacheClass::kFull), 4);
  for (const int64_t logical : {0, 1}) {
    EXPECT_EQ(Number(a, CacheClass::kFull, logical), Number(b, CacheClass::kFull, logical));
  }
  EXPECT_NE(Number(a, CacheClass::kFull, 2), Number(b, CacheClass::kFull, 2));
  EXPECT_EQ(manager_->prefixes().num_nodes(), 2);
}

TEST_F(BlockManagerTest, ARollingPointReplacesTheLastOneUnlessThatWasUsed) {
  Create(60);
  Client client = Start(Tokens(2000));
  const auto roll = [&](int64_t end) { Step(client, end, {.points = {&end, 1}, .rolling = end}); };
  roll(300);
  EXPECT_EQ(manager_->prefixes().num_points(), 1);
  roll(600);
  EXPECT_EQ(manager_->prefixes().num_points(), 1);
  const std::vector<TokenId> other = Join(std::span(client.tokens).first(600), Tokens(100, 2));
  EXPECT_EQ(Match(other).position, 600);
  const Client hit = Start(other);
  EXPECT_EQ(hit.match.position, 600);
  roll(900);
  EXPECT_EQ(manager_->prefixes().num_points(), 2) << "600 was used: others may want it";
  EXPECT_EQ(Match(other).position, 600);
  roll(1200);
  EXPECT_EQ(manager_->prefixes().num_points(), 2);
}

TEST_F(BlockManagerTest, ARollingPointThatWasGivenUpTakesNobodyElsesPlace) {
  Create(10);
  Client client = Start(Tokens(2000));
  const int64_t rolled = 300;
  Step(client, rolled, {.points = {&rolled, 1}, .rolling = rolled});
  Step(client, 900);
  Step(client, 1001);  // the window in front of 300 is given back
  // Others need the memory; then their points take all numbers that are free.
  for (uint32_t seed = 2; Match(std::span(client.tokens).first(400)).position == 300; ++seed) {
    ASSERT_LT(seed, 40U);
    RunPrompt(Tokens(1000, seed), 999);
  }
  Client other = Start(Tokens(100, 100));
  Step(other, 100, {.return_to = 40});
  for (int64_t p = 40; p <= 100; ++p) ASSERT_TRUE(manager_->Keep(other.id, other.tokens, p));
  const int64_t num_points = manager_->prefixes().num_points();
  const int64_t num_evictions = manager_->num_evictions();
  const int64_t end = 1002;
  Step(client, end, {.points = {&end, 1}, .rolling = end});
  ASSERT_EQ(manager_->num_evictions(), num_evictions);
  EXPECT_EQ(manager_->prefixes().num_points(), num_points + 1);
}

TEST_F(BlockManagerTest, AForkSharesWholeBlocksAndCopiesTheOthers) {
  Create(60);
  Client a = Start(Tokens(1001));
  Step(a, 1001);
  const int64_t before = InUse(CacheClass::kState128);
  Client b;
  b.tokens = a.tokens;
  b.keys = std::make_unique<PrefixKeys>(*a.keys);
  b.id = *manager_->Fork(a.id, b.keys.get());
  EXPECT_EQ(manager_->length(b.id), 1001);
  ASSERT_EQ(manager_->copies().size(), 4U);
  EXPECT_EQ(InUse(CacheClass::kState128), before + 1);
  for (const CacheClass c : kAll) {
    const int64_t last = 1000 / CacheLayout::PositionsPerBlock(c);
    EXPECT_EQ(Number(a, c, last - 1), Number(b, c, last - 1));
    EXPECT_NE(Number(a, c, last), Number(b, c, last));
  }
  // Each writes its own.
  manager_->ClearCopies();
  a.tokens.push_back(1);
  b.tokens.push_back(2);
  Step(a, 1002);
  Step(b, 1002);
  const SequenceId ids[] = {a.id, b.id};
  EXPECT_EQ(ContradictionIn(*manager_, ids), "");
}

TEST_F(BlockManagerTest, TakingBackCopiesOnlyWhatOthersRead) {
  Create(60);
  Client client = Start(Tokens(1010));
  Step(client, 1000);
  Step(client, 1006, {.return_to = 1001});
  EXPECT_TRUE(manager_->Truncate(client.id, 1001));
  EXPECT_TRUE(manager_->copies().empty());
  Step(client, 1006, {.return_to = 1001});
  // A point behind the place: its partly filled blocks must not change.
  EXPECT_TRUE(manager_->Keep(client.id, client.tokens, 1005));
  EXPECT_TRUE(manager_->Truncate(client.id, 1002));
  EXPECT_EQ(manager_->copies().size(), 4U);
  manager_->ClearCopies();
  EXPECT_EQ(Match(client.tokens).position, 1005);
  // A point in front of it does not mind.
  Step(client, 1006, {.return_to = 1002});
  EXPECT_TRUE(manager_->Keep(client.id, client.tokens, 1002));
  EXPECT_TRUE(manager_->Truncate(client.id, 1003));
  EXPECT_TRUE(manager_->copies().empty());
}

TEST_F(BlockManagerTest, AStepThatIsNotRunIsTakenBack) {
  Create(60);
  Client client = Start(Tokens(1500));
  Step(client, 1000);
  const int64_t full = InUse(CacheClass::kFull);
  ASSERT_TRUE(manager_->Extend(client.id, 1500));
  EXPECT_TRUE(manager_->Truncate(client.id, 1000));
  EXPECT_EQ(manager_->length(client.id), 1000);
  EXPECT_EQ(InUse(CacheClass::kFull), full);
  Step(client, 1001);
}

// Also when its windows have long gone on.
TEST_F(BlockManagerTest, ASequenceCanBeTakenBackToItsBeginning) {
  Create(60);
  Client client = Start(Tokens(2000));
  for (int64_t end = 200; end <= 2000; end += 200) Step(client, end);
  ASSERT_TRUE(manager_->Truncate(client.id, 0));
  for (const CacheClass c : kAll) EXPECT_EQ(InUse(c), 0);
  EXPECT_EQ(manager_->prefixes().num_nodes(), 0);
  client.tokens = Tokens(2000, 9);
  for (int64_t end = 200; end <= 2000; end += 200) Step(client, end);
  EXPECT_EQ(InUse(CacheClass::kFull), 8);
  EXPECT_EQ(client.keys->block(3), PrefixKeys(seed_, "", client.tokens).block(3));
}

TEST_F(BlockManagerTest, WhatWasUsedLongestAgoIsGivenUpFirst) {
  Create(14);
  const std::vector<TokenId> a = Tokens(1000, 1);
  const std::vector<TokenId> b = Tokens(1000, 2);
  RunPrompt(a, 999);
  RunPrompt(b, 999);
  RunPrompt(a, 999);  // used again, so b is the older one now
  ASSERT_EQ(manager_->num_evictions(), 0);
  // Others fill the memory until one of the two is gone.
  bool has_a = true;
  bool has_b = true;
  for (uint32_t seed = 3; has_a && has_b; ++seed) {
    ASSERT_LT(seed, 40U);
    RunPrompt(Tokens(1000, seed), 999);
    has_a = Match(a).position == 999;
    has_b = Match(b).position == 999;
  }
  EXPECT_TRUE(has_a);
  EXPECT_FALSE(has_b);
  EXPECT_GT(manager_->num_evictions(), 0);
}

TEST_F(BlockManagerTest, RunningSequencesDoNotFlushCachedPrefixesOfAFreePool) {
  Create(60);
  const std::vector<TokenId> prompt = Tokens(1000);
  RunPrompt(prompt, 999);
  // Thousands of window blocks are taken and given back; they never held anything worth keeping.
  Client client = Start(Tokens(3000, 2));
  for (int64_t p = 1; p <= 3000; ++p) Step(client, p);
  EXPECT_EQ(manager_->num_evictions(), 0);
  EXPECT_EQ(Match(prompt).position, 999);
}

TEST_F(BlockManagerTest, ClearingForgetsPrefixesAndKeepsSequences) {
  Create(60);
  const std::vector<TokenId> prompt = Tokens(1000);
  RunPrompt(prompt, 999);
  Client client = Start(prompt);
  manager_->ClearPrefixes();
  manager_->ClearCopies();
  EXPECT_EQ(Match(prompt).position, 0);
  EXPECT_EQ(manager_->length(client.id), 999);
  const int64_t end = 1000;
  Step(client, 1000, {.points = {&end, 1}});
  EXPECT_FALSE(manager_->Keep(client.id, client.tokens, 1000));
  EXPECT_EQ(manager_->prefixes().num_points(), 0);
  manager_->Release(client.id);
  EXPECT_EQ(manager_->pool().num_free_slabs(), 60);
  RunPrompt(prompt, 999);
  EXPECT_EQ(Match(prompt).position, 999) << "what starts later is cached again";
}

TEST_F(BlockManagerTest, WithoutPrefixCachingNothingIsKept) {
  Create(60, false);
  const std::vector<TokenId> prompt = Tokens(1000);
  RunPrompt(prompt, 999);
  EXPECT_EQ(manager_->pool().num_free_slabs(), 60);
  EXPECT_EQ(Match(prompt).miss, PrefixMiss::kDisabled);
}

TEST_F(BlockManagerTest, WhatCannotBeHadChangesNothing) {
  Create(8);
  std::vector<Client> clients;
  for (uint32_t seed = 0; seed < 8; ++seed) clients.push_back(Start(Tokens(4000, seed)));
  EXPECT_FALSE(manager_->Admit({}, clients[0].keys.get(), 1)) << "all slots are taken";
  // Grow by turns until nothing is left.
  size_t failed = 0;
  for (int64_t end = 400; failed == 0 && end <= 4000; end += 400) {
    for (size_t i = 0; i < 8 && failed == 0; ++i) {
      if (!manager_->Extend(clients[i].id, end)) {
        failed = i + 1;
      } else {
        manager_->Commit(clients[i].id, clients[i].tokens);
      }
    }
  }
  ASSERT_GT(failed, 0U);
  Client& client = clients[failed - 1];
  const int64_t length = manager_->length(client.id);
  EXPECT_GT(length, 0);
  std::vector<SequenceId> ids;
  for (const Client& c : clients) ids.push_back(c.id);
  EXPECT_EQ(ContradictionIn(*manager_, ids), "");
  EXPECT_FALSE(manager_->Extend(client.id, length + 400));
  EXPECT_EQ(manager_->length(client.id), length);
  // A preempted one makes room, and comes back where it was.
  Client& victim = clients[failed % 8];
  EXPECT_TRUE(manager_->Keep(victim.id, victim.tokens, manager_->length(victim.id)));
  const int64_t was_at = manager_->length(victim.id);
  manager_->Release(victim.id);
  EXPECT_EQ(Match(victim.tokens).position, was_at);
  EXPECT_TRUE(manager_->Extend(client.id, length + 400));
}

TEST_F(BlockManagerTest, AnAdmissionThatFailsLeavesNoCopies) {
  Create(5);
  Client first = Start(Tokens(500));
  Step(first, 500, {.return_to = 499});
  ASSERT_TRUE(manager_->Keep(first.id, first.tokens, 499));
  std::vector<Client> others;
  bool full = false;
  for (uint32_t seed = 2; !full; ++seed) {
    ASSERT_LT(manager_->num_sequences(), 8);
    others.push_back(Start(Tokens(4000, seed)));
    for (int64_t end = 4; !full && end <= 4000; end += 4) {
      full = !manager_->Extend(others.back().id, end);
      if (!full) manager_->Commit(others.back().id, others.back().tokens);
    }
  }
  manager_->ClearCopies();
  ASSERT_LT(manager_->num_sequences(), 8);
  PrefixKeys keys(seed_, "", first.tokens);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Match(first.tokens).position, 499);
    EXPECT_FALSE(manager_->Admit(Match(first.tokens), &keys, 500));
    EXPECT_FALSE(manager_->Fork(first.id, &keys));
  }
  EXPECT_TRUE(manager_->copies().empty());
}

TEST_F(BlockManagerTest, MemoryBeyondBlockTablesIsRefused) {
  const BlockManagerOptions options = {1, 1000, 100, true};
  EXPECT_EQ(BlockManager::Create(planner_, 0, options).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(
      BlockManager::Create(planner_, BlockPool::MaxSlabs(planner_) + 1, options).status().code(),
      StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
