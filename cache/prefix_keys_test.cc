// PrefixKeys: the chain of hashes, against values that Python's hashlib computed.
#include "cache/prefix_keys.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

namespace fathom {
namespace {

std::string Hex(const PrefixKey& key) {
  std::string text;
  for (const uint8_t byte : key) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

std::vector<TokenId> Ids(size_t n) {
  std::vector<TokenId> ids(n);
  std::iota(ids.begin(), ids.end(), 1000);
  return ids;
}

// seed = sha256(b"fathom test model").digest(); ids = struct.pack("<256I", *range(1000, 1256));
// sha256(seed + ids + salt).hexdigest(), the next block sha256(key + ids).
TEST(PrefixKeys, AreThoseOfTheDefinition) {
  const PrefixKey seed = PrefixSeed("fathom test model");
  const PrefixKeys plain(seed, "", Ids(600));
  ASSERT_EQ(plain.num_blocks(), 2);
  EXPECT_EQ(Hex(plain.root()), "8c8410073a5a89d1eb614ad9d200b627f9648994dcc5b5b183d73d4d6e5d9d39");
  EXPECT_EQ(Hex(plain.block(0)),
            "5a0da802883593e076bd9bc2f335db1cdf238469d068f2d3e82659e126666e3c");
  EXPECT_EQ(Hex(plain.block(1)),
            "a379c3ad52da381e6b87c936d6a568dba8d9df2b78351d356fbdc751dbfb84f9");
  // A salt enters block 0, and with it all behind.
  const PrefixKeys salted(seed, "tenant", Ids(600));
  EXPECT_EQ(Hex(salted.root()), "add8402713a7a68440655d1154923b280a7c1c15f832e3dde53818855e984c1f");
  EXPECT_EQ(Hex(salted.block(0)),
            "64a44c91e9fa9876778ef29f385bb8d03c9269d8dc32d62551ec8843c80b6a8a");
  EXPECT_EQ(Hex(salted.block(1)),
            "30493882b9c657b283624602cd29eb93d3b79ff11ecfabaf3255efd8bdc63f36");
}

TEST(PrefixKeys, ExtendingInAnyPiecesEqualsTheWhole) {
  const PrefixKey seed = PrefixSeed("m");
  const std::vector<TokenId> ids = Ids(3000);
  const PrefixKeys whole(seed, "s", ids);
  ASSERT_EQ(whole.num_blocks(), 11);
  std::mt19937 random(1);
  for (int run = 0; run < 20; ++run) {
    PrefixKeys keys(seed, "s", {});
    EXPECT_EQ(keys.num_blocks(), 0);
    for (size_t n = 0; n < ids.size();) {
      n = std::min(ids.size(), n + 1 + random() % 700);
      keys.Extend(std::span(ids).first(n));
      ASSERT_EQ(keys.num_blocks(), static_cast<int>(n / 256));
      if (random() % 4 == 0) keys.Truncate(static_cast<int>(random() % 12));
    }
    keys.Extend(ids);
    ASSERT_EQ(keys.num_blocks(), 11);
    for (int k = 0; k < 11; ++k) EXPECT_EQ(keys.block(k), whole.block(k)) << k;
  }
}

TEST(PrefixKeys, OneTokenChangesItsBlockAndAllBehind) {
  const PrefixKey seed = PrefixSeed("m");
  std::vector<TokenId> ids = Ids(1024);
  const PrefixKeys before(seed, "", ids);
  ids[511] += 1;
  const PrefixKeys after(seed, "", ids);
  EXPECT_EQ(before.block(0), after.block(0));
  for (int k = 1; k < 4; ++k) EXPECT_NE(before.block(k), after.block(k));
  EXPECT_NE(PrefixKeys(PrefixSeed("n"), "", ids).block(0), after.block(0));
}

}  // namespace
}  // namespace fathom
