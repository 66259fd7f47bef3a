#include "backend/ops/embed_expand.h"

#include "backend/ops/test_backends.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using testing_values::TestWeight;

class EmbedExpand : public OpTest {
 protected:
  void SetUp() override {
    OpTest::SetUp();
    for (int token = 0; token < 5; ++token) {
      for (int c = 0; c < 6; ++c) table_.Set(token, c, 10 * token + c + 0.5);
    }
    args_ = {.token_ids = ids_, .table = table_.view(), .hc = {hc_.data(), 3, 4, 6}};
  }
  std::vector<TokenId> ids_ = {4, 0, 4};
  TestWeight table_{DType::kBF16, 5, 6};
  std::vector<float> hc_ = std::vector<float>(3 * 4 * 6, -1.0f);
  EmbedExpandArgs args_;
};
FATHOM_ON_ALL_BACKENDS(EmbedExpand);

TEST_P(EmbedExpand, EveryCopyIsTheTokensRow) {
  ASSERT_STATUS_OK(backend().EmbedExpand(args_));
  for (size_t i = 0; i < hc_.size(); ++i) {
    const size_t token = static_cast<size_t>(ids_[i / 24]);
    ASSERT_EQ(hc_[i], static_cast<float>(10 * token + i % 6) + 0.5f) << i;
  }
}

TEST_P(EmbedExpand, TokenOutsideTheVocabularyIsRefusedBeforeAnythingIsWritten) {
  for (TokenId bad : {-1, 5, 1 << 30}) {
    ids_[2] = bad;
    ExpectRejected(backend().EmbedExpand(args_), "token id " + std::to_string(bad));
  }
  EXPECT_EQ(hc_, std::vector<float>(3 * 4 * 6, -1.0f));
}

TEST_P(EmbedExpand, ChecksItsArguments) {
  EmbedExpandArgs bad = args_;
  bad.hc = {hc_.data(), 2, 4, 6};
  ExpectRejected(backend().EmbedExpand(bad), "hc");
  bad.hc = {hc_.data(), 3, 6, 4};
  ExpectRejected(backend().EmbedExpand(bad), "hc");
  bad = args_;
  bad.table.dtype = DType::kF32;
  ExpectRejected(backend().EmbedExpand(bad), "table");
  bad = args_;
  bad.table.data = nullptr;
  ExpectRejected(backend().EmbedExpand(bad), "table");
}

}  // namespace
}  // namespace fathom
