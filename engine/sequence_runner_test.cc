// Which formats a cache has changes its bytes and not one bit of a result.
#include "engine/sequence_runner.h"

#include <gtest/gtest.h>

#include <bit>

#include "engine/local_engine.h"

namespace fathom {
namespace {

constexpr int kChunk = 97;  // steps begin anywhere in windows and pages
constexpr int64_t kLength = 700;

// On the CPU backend: the reference reads entries through the page codec, whose test shows the
// same of single entries.
class CacheFormats : public testing::Test {
 protected:
  void SetUp() override {
    auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
    checkpoint_ = std::make_unique<Checkpoint>(std::move(checkpoint).value());
    auto backend = MakeBackend("cpu", Numerics::kOfficial, 2);
    ASSERT_TRUE(backend.ok());
    backend_ = std::move(backend).value();
    auto model = Model::Create(*checkpoint_, *backend_, kChunk, kLength);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = std::move(model).value();
  }

  // Bits of the last chunk's logits after kLength tokens.
  std::vector<uint32_t> Logits(CacheDTypes dtypes) {
    auto runner = SequenceRunner::Create(*model_, Numerics::kOfficial, kLength, dtypes);
    EXPECT_TRUE(runner.ok()) << runner.status().ToString();
    const int vocab = model_->config().vocab_size;
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < kLength; ++i) {
      tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7 + 3) % vocab));
    }
    std::vector<float> logits;
    for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
      const size_t n = std::min<size_t>(kChunk, tokens.size() - begin);
      const bool last = begin + n == tokens.size();
      logits.resize(last ? n * static_cast<size_t>(vocab) : 0);
      const Status status = (*runner)->Step(
          std::span(tokens).subspan(begin, n),
          last ? SequenceRunner::Logits::kAll : SequenceRunner::Logits::kNone, logits);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    std::vector<uint32_t> bits;
    for (const float x : logits) bits.push_back(std::bit_cast<uint32_t>(x));
    return bits;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
};

TEST_F(CacheFormats, AllGiveTheSameLogitsBitForBit) {
  // Long enough that the indexer chooses.
  ASSERT_GT(kLength / 4, model_->config().index_topk);
  const std::vector<uint32_t> want = Logits({CacheDType::kBf16, CacheDType::kBf16});
  for (const CacheDTypes dtypes : {CacheDTypes{CacheDType::kFp8, CacheDType::kFp4},
                                   CacheDTypes{CacheDType::kFp8, CacheDType::kFp8}}) {
    EXPECT_TRUE(Logits(dtypes) == want)
        << CacheDTypeName(dtypes.attention) << " + " << CacheDTypeName(dtypes.indexer);
  }
  EXPECT_EQ(backend_->num_inexact_entries(), 0);
}

TEST_F(CacheFormats, RefusesFormatsOfTheOtherNumerics) {
  const Result<std::unique_ptr<SequenceRunner>> runner = SequenceRunner::Create(
      *model_, Numerics::kOfficial, kLength, CacheDTypes{CacheDType::kF32, CacheDType::kF32});
  EXPECT_EQ(runner.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
