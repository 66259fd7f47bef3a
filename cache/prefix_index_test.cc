// PrefixIndex: what is found, and what goes with what.
#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace fathom {
namespace {

constexpr CacheDTypes kFp8Fp4 = {CacheDType::kFp8, CacheDType::kFp4};

class PrefixIndexTest : public testing::Test {
 protected:
  // A chain of nodes for whole blocks of `tokens`; blocks stay in use, as by a sequence.
  std::vector<PrefixNode> AddChain(const PrefixKeys& keys) {
    std::vector<PrefixNode> chain = {kRootNode};
    for (int k = 0; k < keys.num_blocks(); ++k) {
      PrefixNode node = index_.Find(chain.back(), keys.block(k));
      if (node == kNoIndex) {
        node = index_.AddNode(chain.back(), keys.block(k), pool_.Allocate(CacheClass::kFull));
      } else {
        pool_.Ref(index_.BlockOf(node));
      }
      chain.push_back(node);
    }
    return chain;
  }
  // The sequence that used the chain ends.
  void EndChain(const std::vector<PrefixNode>& chain) {
    for (size_t i = chain.size() - 1; i > 0; --i) pool_.Unref(index_.BlockOf(chain[i]));
    index_.Prune(chain.back());
  }
  // A resume point at the end of `text` on its last whole block, with one block of the window.
  ResumePoint AddPoint(const std::vector<PrefixNode>& chain, std::span<const TokenId> text,
                       const PrefixKey& root) {
    const size_t whole = text.size() / 256;
    const BlockId swa = pool_.Allocate(CacheClass::kSwa);
    const PrefixIndex::PointBlock block = {CacheClass::kSwa, 0, swa};
    const ResumePoint point =
        index_.AddPoint(chain[whole], root, text.subspan(whole * 256), {&block, 1});
    pool_.Unref(swa);
    return point;
  }
  static std::vector<TokenId> Text(size_t n, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::vector<TokenId> text(n);
    for (TokenId& t : text) t = static_cast<TokenId>(random() % 1000);
    return text;
  }
  [[nodiscard]] PrefixMatch Match(std::span<const TokenId> text, const PrefixKeys& keys) const {
    return index_.Match(text, keys, static_cast<int64_t>(text.size()) - 1);
  }

  const PrefixKey seed_ = PrefixSeed("m");
  const CachePlanner planner_{CacheLayout({{0, 4, 128}, 80, 16, 32, 128}, kFp8Fp4)};
  BlockPool pool_{planner_, 40};
  PrefixIndex index_{planner_, pool_, 20};
};

TEST_F(PrefixIndexTest, TheLongestTailThatTheTextBeginsWithWins) {
  const std::vector<TokenId> text = Text(500);
  const PrefixKeys keys(seed_, "", text);
  const std::vector<PrefixNode> chain = AddChain(keys);
  const std::span<const TokenId> all = text;
  for (const size_t n : {300U, 260U, 256U, 410U, 20U}) AddPoint(chain, all.first(n), keys.root());
  std::vector<TokenId> other = text;
  other[299] += 1;
  AddPoint(chain, std::span<const TokenId>(other).first(400), keys.root());
  EXPECT_EQ(index_.num_points(), 6);

  EXPECT_EQ(Match(text, keys).position, 410);
  EXPECT_EQ(Match(all.first(411), keys).position, 410);
  EXPECT_EQ(Match(all.first(410), keys).position, 300) << "the last token is always computed";
  EXPECT_EQ(Match(all.first(300), keys).position, 260);
  EXPECT_EQ(Match(all.first(257), keys).position, 256);
  EXPECT_EQ(Match(all.first(256), keys).position, 20);
  EXPECT_EQ(Match(all.first(20), keys).position, 0);
  EXPECT_EQ(Match(other, keys).position, 400);
  other[258] += 1;
  EXPECT_EQ(Match(other, keys).position, 256);
  EXPECT_EQ(Match(other, keys).node, chain[1]);
}

TEST_F(PrefixIndexTest, MissesHaveReasonsAndJunctions) {
  const std::vector<TokenId> text = Text(1000);
  const PrefixKeys keys(seed_, "", text);
  PrefixMatch match = Match(text, keys);
  EXPECT_EQ(match.position, 0);
  EXPECT_EQ(match.miss, PrefixMiss::kMissingBlock);
  EXPECT_EQ(match.junction, 0);

  const std::vector<PrefixNode> chain = AddChain(keys);
  match = Match(text, keys);
  EXPECT_EQ(match.position, 0);
  EXPECT_EQ(match.miss, PrefixMiss::kNoResumePoint);
  EXPECT_EQ(match.junction, 768);

  const std::span<const TokenId> all = text;
  AddPoint(chain, all.first(512), keys.root());
  match = Match(text, keys);
  EXPECT_EQ(match.position, 512);
  EXPECT_EQ(match.miss, PrefixMiss::kNoResumePoint);
  EXPECT_EQ(match.junction, 768);
  // Text that goes on differently behind the point: nothing was lost.
  std::vector<TokenId> other = text;
  other[600] += 1;
  match = Match(other, PrefixKeys(seed_, "", other));
  EXPECT_EQ(match.position, 512);
  EXPECT_EQ(match.miss, PrefixMiss::kMissingBlock);
  EXPECT_EQ(match.junction, 0);

  AddPoint(chain, all.first(999), keys.root());
  match = Match(text, keys);
  EXPECT_EQ(match.position, 999);
  EXPECT_EQ(match.miss, PrefixMiss::kNone);
  EXPECT_EQ(match.junction, 0);
}

TEST_F(PrefixIndexTest, SaltSeparatesPointsInFrontOfTheFirstWholeBlockToo) {
  const std::vector<TokenId> text = Text(100);
  const PrefixKeys mine(seed_, "mine", text);
  const PrefixKeys others(seed_, "others", text);
  AddPoint({kRootNode}, std::span<const TokenId>(text).first(50), mine.root());
  EXPECT_EQ(Match(text, mine).position, 50);
  EXPECT_EQ(Match(text, others).position, 0);
  AddPoint({kRootNode}, std::span<const TokenId>(text).first(40), others.root());
  EXPECT_EQ(Match(text, mine).position, 50);
  EXPECT_EQ(Match(text, others).position, 40);
}

TEST_F(PrefixIndexTest, AnEqualPointIsTouchedNotAdded) {
  const std::vector<TokenId> text = Text(30);
  const PrefixKey root = PrefixKeys(seed_, "", {}).root();
  const ResumePoint point = AddPoint({kRootNode}, text, root);
  EXPECT_FALSE(index_.WasUsed(point));
  EXPECT_EQ(AddPoint({kRootNode}, text, root), point);
  EXPECT_TRUE(index_.WasUsed(point));
  EXPECT_EQ(index_.num_points(), 1);
  EXPECT_EQ(index_.BlocksOf(point).size(), 1U);
  EXPECT_EQ(pool_.Use(CacheClass::kSwa).cached, 1) << "the second block is leased by nobody";
}

TEST_F(PrefixIndexTest, ThePointUsedLongestAgoMakesRoom) {
  const PrefixKey root = PrefixKeys(seed_, "", {}).root();
  const std::vector<TokenId> text = Text(60);
  std::vector<ResumePoint> points;
  for (size_t n = 1; n <= 20; ++n) {
    points.push_back(AddPoint({kRootNode}, std::span<const TokenId>(text).first(n), root));
  }
  const uint64_t generation = index_.GenerationOf(points[1]);
  index_.Touch(points[0]);
  AddPoint({kRootNode}, std::span<const TokenId>(text).first(30), root);
  EXPECT_EQ(index_.num_points(), 20);
  EXPECT_NE(index_.GenerationOf(points[1]), generation) << "replaced by the new one";
  const PrefixKeys keys(seed_, "", text);
  EXPECT_EQ(Match(std::span<const TokenId>(text).first(3), keys).position, 1);
  EXPECT_EQ(Match(std::span<const TokenId>(text).first(4), keys).position, 3);
  EXPECT_EQ(Match(text, keys).position, 30);
}

TEST_F(PrefixIndexTest, EvictingAMiddleBlockTakesWhatIsBehindIt) {
  const std::vector<TokenId> text = Text(256 * 6);
  std::vector<TokenId> branch = text;
  branch[256 * 2] += 1;
  const PrefixKeys keys(seed_, "", text);
  const PrefixKeys branch_keys(seed_, "", branch);
  const std::vector<PrefixNode> chain = AddChain(keys);
  const std::vector<PrefixNode> other = AddChain(branch_keys);
  EXPECT_EQ(other[2], chain[2]);
  const std::span<const TokenId> all = text;
  AddPoint(chain, all.first(256), keys.root());
  AddPoint(chain, all, keys.root());
  AddPoint(other, branch, keys.root());
  EndChain(chain);
  EndChain(other);
  EXPECT_EQ(index_.num_nodes(), 10);
  EXPECT_EQ(pool_.Use(CacheClass::kFull).cached, 10);

  index_.Evict(index_.BlockOf(chain[4]));
  EXPECT_EQ(index_.num_nodes(), 6) << "the trunk and the other branch";
  EXPECT_EQ(index_.num_points(), 2);
  EXPECT_EQ(Match(text, keys).position, 256);
  EXPECT_EQ(Match(text, keys).junction, 512);
  EXPECT_EQ(pool_.Use(CacheClass::kSwa).cached, 2);
  index_.Evict(index_.BlockOf(chain[2]));
  EXPECT_EQ(index_.num_nodes(), 1);
  EXPECT_EQ(Match(branch, branch_keys).position, 256);
  EXPECT_EQ(pool_.Use(CacheClass::kFull).cached, 1);
}

TEST_F(PrefixIndexTest, EvictingAWindowTakesTheTextThatCanNoLongerBeContinued) {
  const std::vector<TokenId> text = Text(256 * 4);
  const PrefixKeys keys(seed_, "", text);
  const std::vector<PrefixNode> chain = AddChain(keys);
  const std::span<const TokenId> all = text;
  AddPoint(chain, all.first(300), keys.root());
  const ResumePoint last = AddPoint(chain, all, keys.root());
  EndChain(chain);
  EXPECT_EQ(pool_.Use(CacheClass::kFull).cached, 4);
  index_.Evict(index_.BlocksOf(last)[0].block);
  EXPECT_EQ(index_.num_points(), 1);
  EXPECT_EQ(index_.num_nodes(), 1);
  EXPECT_EQ(pool_.Use(CacheClass::kFull).cached, 1);
  EXPECT_EQ(pool_.Use(CacheClass::kFull).free, planner_.BlocksPerSlab(CacheClass::kFull) - 1);
  index_.Clear();
  EXPECT_EQ(pool_.num_free_slabs(), 40);
}

TEST_F(PrefixIndexTest, LastPointOnABlock) {
  const std::vector<TokenId> text = Text(200);
  const PrefixKey root = PrefixKeys(seed_, "", {}).root();
  const BlockId block = pool_.Allocate(CacheClass::kSwa);
  EXPECT_EQ(index_.LastPointOn(block), -1);
  const PrefixIndex::PointBlock leased = {CacheClass::kSwa, 0, block};
  for (const size_t n : {30U, 60U, 10U}) {
    index_.AddPoint(kRootNode, root, std::span<const TokenId>(text).first(n), {&leased, 1});
  }
  EXPECT_EQ(index_.LastPointOn(block), 60);
  // What is moved keeps its leases.
  const BlockId to = pool_.Allocate(CacheClass::kSwa);
  index_.Move(block, to);
  EXPECT_EQ(index_.LastPointOn(block), -1);
  EXPECT_EQ(index_.LastPointOn(to), 60);
  EXPECT_EQ(pool_.leases(block), 0);
  EXPECT_EQ(pool_.leases(to), 3);
  pool_.Unref(block);
  pool_.Unref(to);
  index_.Evict(to);
  EXPECT_EQ(index_.num_points(), 0);
  EXPECT_EQ(pool_.num_free_slabs(), 40);
}

// Keys that all want the same few slots of the hash table, also around its end, added and removed
// at random: what is there is found, what is not is not.
TEST_F(PrefixIndexTest, RemovingFromARunOfEqualHashesKeepsTheRest) {
  std::mt19937 random(3);
  std::map<int, PrefixNode> nodes;
  const auto key = [](int i) {
    PrefixKey k{};
    k.fill(0xFF);  // the last slots of any table
    k[0] = static_cast<uint8_t>(0xFC + i % 5);
    k[31] = static_cast<uint8_t>(i);
    return k;
  };
  for (int step = 0; step < 20'000; ++step) {
    const int i = static_cast<int>(random() % 60);
    const auto there = nodes.find(i);
    ASSERT_EQ(index_.Find(kRootNode, key(i)), there == nodes.end() ? kNoIndex : there->second);
    if (there == nodes.end()) {
      const BlockId block = pool_.Allocate(CacheClass::kFull);
      ASSERT_NE(block, kNoBlock);
      nodes[i] = index_.AddNode(kRootNode, key(i), block);
    } else {
      const BlockId block = index_.BlockOf(there->second);
      pool_.Unref(block);
      index_.Evict(block);
      nodes.erase(there);
    }
    ASSERT_EQ(index_.num_nodes(), static_cast<int64_t>(nodes.size()));
  }
  for (int i = 0; i < 60; ++i) {
    EXPECT_EQ(index_.Find(kRootNode, key(i)), nodes.contains(i) ? nodes[i] : kNoIndex);
  }
}

}  // namespace
}  // namespace fathom
