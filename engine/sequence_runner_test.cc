// Which formats a cache has changes its bytes and not one bit of a result; and sequences that go on
// without being computed.
#include "engine/sequence_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>

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

// Sequences of at least two blocks that are repeated.
class Repeated : public CacheFormats {
 protected:
  static constexpr int64_t kMost = 8 * kBlockPositions;

  void SetUp() override {
    CacheFormats::SetUp();
    if (HasFatalFailure()) return;
    auto model = Model::Create(*checkpoint_, *backend_, kBlockPositions, kMost);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = std::move(model).value();
    auto runner = SequenceRunner::Create(*model_, Numerics::kOfficial, kMost);
    ASSERT_TRUE(runner.ok()) << runner.status().ToString();
    runner_ = std::move(runner).value();
  }
  void Compute(int64_t n) {
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < n; ++i) {
      tokens.push_back(
          static_cast<TokenId>((i * i * 31 + i * 7 + 3) % model_->config().vocab_size));
    }
    for (int64_t at = 0; at < n; at += kBlockPositions) {
      const auto rows = static_cast<size_t>(std::min<int64_t>(n - at, kBlockPositions));
      const Status status = runner_->Step(std::span(tokens).subspan(static_cast<size_t>(at), rows),
                                          SequenceRunner::Logits::kNone, {});
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }
  std::vector<float> Decode(ForwardObserver* observer = nullptr) {
    std::vector<float> logits(static_cast<size_t>(model_->config().vocab_size));
    const TokenId token = 5;
    const Status status =
        runner_->Step({&token, 1}, SequenceRunner::Logits::kLast, logits, observer);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return logits;
  }

  std::unique_ptr<SequenceRunner> runner_;
};

// Entries that the indexer chose in each layer.
class Choices final : public ForwardObserver {
 public:
  void OnEntries(int /*layer*/, TensorView<const int32_t> entries,
                 TensorView<const int32_t> num_entries) override {
    chosen.emplace_back(entries.row(0).begin(), entries.row(0).begin() + num_entries.data()[0]);
  }
  std::vector<std::vector<int32_t>> chosen;
};

TEST_F(Repeated, EntriesAreCopiesOfTheFirstOnes) {
  constexpr int64_t kPeriod = 2 * kBlockPositions;
  Compute(kPeriod);
  ASSERT_TRUE(runner_->Repeat(2 * kPeriod).ok());
  EXPECT_EQ(runner_->length(), 3 * kPeriod);
  Choices choices;
  Decode(&choices);
  // Three equal entries have three equal scores, and of those the first is taken first. Top-k is a
  // third of them or less, so the later ones could not all be chosen in its place.
  constexpr int32_t kEntries = kPeriod / 4;
  int repeated = 0;
  for (const std::vector<int32_t>& chosen : choices.chosen) {
    for (const int32_t entry : chosen) {
      if (entry < kEntries) continue;
      EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), entry - kEntries)) << entry;
      ++repeated;
    }
  }
  EXPECT_GT(repeated, 0);
}

TEST_F(Repeated, InPartsIsTheSameAsAtOnce) {
  Compute(kBlockPositions);
  ASSERT_TRUE(runner_->Repeat(6 * kBlockPositions).ok());
  const std::vector<float> want = Decode();
  runner_->Clear();
  Compute(kBlockPositions);
  ASSERT_TRUE(runner_->Repeat(kBlockPositions).ok());
  ASSERT_TRUE(runner_->Repeat(5 * kBlockPositions).ok());
  EXPECT_EQ(Decode(), want);
  // And it is not what a sequence says that was repeated less often.
  runner_->Clear();
  Compute(kBlockPositions);
  ASSERT_TRUE(runner_->Repeat(kBlockPositions).ok());
  EXPECT_NE(Decode(), want);
}

TEST_F(Repeated, OnlyWholeBlocksThatFit) {
  const auto refused = [&](int64_t n) {
    const Position length = runner_->length();
    EXPECT_EQ(runner_->Repeat(n).code(), StatusCode::kInvalidArgument) << n;
    EXPECT_EQ(runner_->length(), length);
  };
  refused(kBlockPositions);  // nothing to repeat
  Compute(kBlockPositions);
  for (const int64_t n : {int64_t{-256}, int64_t{0}, int64_t{255}, kMost, INT64_MAX / 256 * 256}) {
    refused(n);
  }
  ASSERT_TRUE(runner_->Repeat(kMost - kBlockPositions).ok());
  refused(kBlockPositions);  // full
  runner_->Clear();
  Compute(10);
  refused(kBlockPositions);
}

}  // namespace
}  // namespace fathom
