#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/test_data.h"

namespace fathom {
namespace {

TEST(Checkpoint, OpensASingleFile) {
  auto opened = Checkpoint::Open(TinyA());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->num_files(), 1);
  EXPECT_EQ(opened->tensors().size(), 585u);
  EXPECT_EQ(opened->total_bytes(), 9'301'970u);
  EXPECT_TRUE(opened->notes().empty());
  const StoredTensor* tensor = opened->Find("layers.2.attn.wq_b.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{512, 128}));
  EXPECT_EQ(opened->Find("layers.2.attn.wq_b"), nullptr);
}

TEST(Checkpoint, OpensTheBundledModelFromTwoShards) {
  auto opened = Checkpoint::Open(SourceDir() / "models/fathom-nano");
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->num_files(), 2);
  EXPECT_EQ(opened->tensors().size(), 1186u);
  EXPECT_EQ(opened->total_bytes(), 17'967'594u);
  EXPECT_EQ(opened->config().mtp_compress_ratios, std::vector<int>{0});
  EXPECT_NE(opened->Find("mtp.0.e_proj.weight"), nullptr);
}

TEST(Checkpoint, OpensTinyB) {
  const auto directory = ExtraData() / "golden/tiny-b/checkpoint";
  if (!std::filesystem::exists(directory)) {
    if (RunsInCi()) FAIL() << directory << " is missing";
    GTEST_SKIP() << directory << " is missing; set FATHOM_TEST_DATA";
  }
  auto opened = Checkpoint::Open(directory);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->num_files(), 2);
  EXPECT_EQ(opened->total_bytes(), 11'809'592u);
  EXPECT_TRUE(opened->config().mtp_compress_ratios.empty());
}

}  // namespace
}  // namespace fathom
