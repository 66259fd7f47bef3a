// Sampling on the GPU against the reference, at a model's vocabulary: the same bits.
#include <bit>
#include <numeric>

#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

class CudaSample : public CudaTest {
 protected:
  void ExpectReference(Backend& backend, const std::vector<float>& logits,
                       const std::vector<SampleRow>& rows) {
    const auto m = static_cast<int64_t>(rows.size());
    const int64_t vocab = static_cast<int64_t>(logits.size()) / m;
    std::vector<float> host = logits, logprobs(rows.size());
    std::vector<int32_t> tokens(rows.size());
    std::vector<int> indices(rows.size());
    std::iota(indices.begin(), indices.end(), 0);
    ASSERT_STATUS_OK(reference().Sample(
        {{host.data(), m, vocab}, indices, rows, {tokens.data(), m}, {logprobs.data(), m}}));
    const SampleArgs device = {{Put(logits), m, vocab},
                               indices,
                               rows,
                               {Poisoned<int32_t>(rows.size()), m},
                               {Poisoned<float>(rows.size()), m}};
    ASSERT_STATUS_OK(backend.Sample(device));
    ASSERT_STATUS_OK(backend.Synchronize());
    EXPECT_EQ(Get(device.tokens.data(), tokens.size()), tokens);
    const std::vector<float> got = Get(device.logprobs.data(), logprobs.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(logprobs[i])) << i;
    }
  }
};

TEST_F(CudaSample, EqualsTheReferenceAtAModelsVocabulary) {
  constexpr size_t kVocab = 129280;
  Random random(21);
  std::vector<SampleRow> rows = {
      {.temperature = 0.0, .logprob = true},
      {.temperature = 1.0, .logprob = true},
      {.temperature = 0.6, .top_p = 0.95},
      {.temperature = 1.0, .top_p = 0.9999, .min_p = 1e-4},
      {.temperature = 1.0, .top_p = 0.9, .top_k = 40},
      {.temperature = 0.8, .top_k = 1000},
      {.temperature = 1.2, .top_k = 512},
      {.temperature = 1.2, .top_k = 513},
      {.temperature = 1.0, .min_p = 0.05},
      {.temperature = 100.0, .top_p = 0.5},  // near equal: most of the vocabulary
  };
  const size_t kinds = rows.size();
  rows.insert(rows.end(), {{.temperature = 1.0, .top_p = 0.7, .logprob = true},
                           {.temperature = 1.0, .top_p = 0.999, .top_k = 70000}});
  std::vector<float> logits;
  std::vector<TokenAdjustment> adjustments;
  for (TokenId t = 5; t < static_cast<TokenId>(kVocab); t += 977) {
    adjustments.push_back({t, t % 3 == 0 ? 9.0f : 0.0f, 1.1f, 0.5f});
  }
  std::vector<uint64_t> allowed(kVocab / 64, 0xF0F000FFFF0000FFu);
  allowed[7] = 0;
  const std::vector<TokenId> masked = {1, 100'000, 5};
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].random = 0x9E3779B97F4A7C15u * (i + 1);
    const double spread = i == kinds ? 0.0 : 9.0;  // one row of ties altogether
    for (size_t t = 0; t < kVocab; ++t) {
      const auto value = static_cast<float>(random.Uniform(-spread, spread));
      logits.push_back(i % 3 == 0 ? value * std::fabs(value) / 3.0f : value);
    }
    if (i % 3 == 1) rows[i].adjustments = adjustments;
    if (i % 4 == 3) rows[i].allowed = allowed;
    if (i % 2 == 1) rows[i].masked = masked;
  }
  ExpectReference(cuda(), logits, rows);
}

// More settings than pinned memory has room for at once.
TEST_F(CudaSample, RowsTakeTurnsWhereTheirSettingsAreLong) {
  const auto small =
      CudaBackend::Create(Numerics::kOfficial, {.operand_bytes = 1 << 14, .scratch_rows = 64})
          .value();
  ASSERT_STATUS_OK(small->Prepare({.max_rows = 64, .max_cols = 16}));
  constexpr size_t kVocab = 1 << 12;
  Random random(4);
  std::vector<uint64_t> allowed(kVocab / 64, ~uint64_t{0});
  allowed[3] = 0;
  std::vector<SampleRow> rows(37);
  std::vector<float> logits = random.Floats(rows.size() * kVocab, -8.0, 8.0);
  std::vector<TokenAdjustment> adjustments(100);
  for (size_t i = 0; i < adjustments.size(); ++i) {
    adjustments[i] = {static_cast<TokenId>(7 * i), -1.0f, 1.0f, 0.0f};
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].random = 0xD1B54A32D192ED03u * (i + 1);
    rows[i].logprob = true;
    rows[i].allowed = allowed;
    if (i % 5 == 0) rows[i].adjustments = adjustments;
  }
  ExpectReference(*small, logits, rows);
}

}  // namespace
}  // namespace fathom
