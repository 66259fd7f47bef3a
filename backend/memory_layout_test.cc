#include "backend/memory_layout.h"

#include <gtest/gtest.h>

#include <limits>

namespace fathom {
namespace {

TEST(MemoryLayout, ArraysBeginAtMultiplesAndDoNotOverlap) {
  MemoryLayout layout(64);
  EXPECT_EQ(layout.bytes(), 0);
  EXPECT_EQ(layout.Add<float>(1), 0);
  EXPECT_EQ(layout.Add<double>(3, 3), 64);
  EXPECT_EQ(layout.Add<char>(0), 192);
  EXPECT_EQ(layout.Add<int>(16), 192);
  EXPECT_EQ(layout.Add<char>(1), 256);
  EXPECT_EQ(layout.bytes(), 320);
  EXPECT_FALSE(layout.overflow());
}

TEST(MemoryLayout, SizesBeyondAllAddressesAreNoticed) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  MemoryLayout product(64), bytes(64), padding(64), sum(64);
  product.Add<char>(kMost, 2);
  EXPECT_TRUE(product.overflow());
  bytes.Add<double>(kMost / 4);
  EXPECT_TRUE(bytes.overflow());
  padding.Add<char>(kMost - 1);
  EXPECT_TRUE(padding.overflow());
  sum.Add<char>(kMost / 2);
  EXPECT_FALSE(sum.overflow());
  sum.Add<char>(kMost / 2 + 64);
  EXPECT_TRUE(sum.overflow());
}

}  // namespace
}  // namespace fathom
