#include "tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "tokenizer/test_tokenizers.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

using ::fathom::testing::MiniTokenizerJson;

constexpr char kReplacement[] = "\xEF\xBF\xBD";

// In MiniTokenizerJson byte b is token b.
class DetokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded =
        Tokenizer::FromText(MiniTokenizerJson({{"a", "b"}}, {"<control>", "<｜end｜>"}).dump());
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    tokenizer_ = std::make_unique<Tokenizer>(std::move(loaded).value());
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(DetokenizerTest, HoldsBackAnIncompleteCharacter) {
  Detokenizer detokenizer(*tokenizer_);
  EXPECT_EQ(detokenizer.Push(0xF0), "");
  EXPECT_EQ(detokenizer.Push(0x9F), "");
  EXPECT_EQ(detokenizer.Push(0x98), "");
  EXPECT_EQ(detokenizer.num_pending_bytes(), 3u);
  EXPECT_EQ(detokenizer.Push(0x80), "😀");
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST_F(DetokenizerTest, ReplacesOnlyWhatCannotBecomeValid) {
  Detokenizer detokenizer(*tokenizer_);
  EXPECT_EQ(detokenizer.Push(0xF0), "");
  EXPECT_EQ(detokenizer.Push(0x9F), "");
  EXPECT_EQ(detokenizer.Push('x'), std::string(kReplacement) + "x") << "two bytes, one broken part";
  EXPECT_EQ(detokenizer.Push(0x80), kReplacement);
  EXPECT_EQ(detokenizer.Push(0xE4), "");
  EXPECT_EQ(detokenizer.Finish(), kReplacement);
  EXPECT_EQ(detokenizer.Finish(), "");
}

TEST_F(DetokenizerTest, SkipsSpecialTokensOnRequest) {
  const TokenId control = tokenizer_->FindAddedToken("<control>").value();
  Detokenizer keep(*tokenizer_);
  EXPECT_EQ(keep.Push(control), "<control>");
  Detokenizer skip(*tokenizer_, SpecialTokens::kSkip);
  EXPECT_EQ(skip.Push(0xC3), "");
  EXPECT_EQ(skip.Push(control), "");
  EXPECT_EQ(skip.Push(0xA9), "é") << "a skipped token does not break a character";
}

TEST_F(DetokenizerTest, IdsWithoutTokenAddNothing) {
  Detokenizer detokenizer(*tokenizer_);
  for (const TokenId id : {-1, tokenizer_->vocab_size(), 1 << 30, -(1 << 30)}) {
    EXPECT_EQ(detokenizer.Push(id), "");
  }
}

TEST_F(DetokenizerTest, RandomIdsGiveTheTextOfTheWhole) {
  std::mt19937 random(11);
  for (int round = 0; round < 5000; ++round) {
    std::vector<TokenId> ids(random() % 30);
    for (TokenId& id : ids) {
      // Lead bytes, continuation bytes and anything: broken sequences of every kind.
      const int kind = static_cast<int>(random() % 3);
      const auto pick = static_cast<TokenId>(random());
      id = kind == 0 ? 0xC0 + (pick & 0x3F) : kind == 1 ? 0x80 + (pick & 0x3F) : (pick & 0xFF);
      if (random() % 20 == 0) id = tokenizer_->vocab_size() - 1;
    }
    for (const SpecialTokens mode : {SpecialTokens::kKeep, SpecialTokens::kSkip}) {
      Detokenizer detokenizer(*tokenizer_, mode);
      std::string text;
      for (const TokenId id : ids) {
        const std::string piece = detokenizer.Push(id);
        ASSERT_EQ(FindInvalidUtf8(piece), std::string::npos);
        ASSERT_LE(detokenizer.num_pending_bytes(), 3u);
        text += piece;
      }
      text += detokenizer.Finish();
      ASSERT_EQ(text, tokenizer_->Decode(ids, mode)) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace fathom
