#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

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

// A variation of tiny-a in a directory of its own.
class TinyVariant : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tiny = SafetensorsFile::Open(TinyA() / "model.safetensors");
    ASSERT_TRUE(tiny.ok()) << tiny.status().ToString();
    tensors_ = tiny->tensors();
    file_.emplace(std::move(*tiny));
    config_ = Json::parse(ReadText(TinyA() / "config.json"));
  }
  Result<Checkpoint> Open() {
    WriteText(directory_.path() / "config.json", config_.dump());
    FATHOM_RETURN_IF_ERROR(WriteSafetensors(directory_.path() / "model.safetensors", tensors_));
    return Checkpoint::Open(directory_.path());
  }
  size_t EraseMtp() {
    return std::erase_if(tensors_, [](const auto& t) { return t.name.starts_with("mtp."); });
  }

  TempDirectory directory_;
  std::optional<SafetensorsFile> file_;
  std::vector<StoredTensor> tensors_;
  Json config_;
};

TEST(NativeTensorName, ReplacesWholePartsOnly) {
  EXPECT_EQ(NativeTensorName("model.layers.3.self_attn.wq_a.weight_scale_inv"),
            "layers.3.attn.wq_a.scale");
  EXPECT_EQ(NativeTensorName("layers.3.mlp.gate.e_score_correction_bias"),
            "layers.3.ffn.gate.bias");
  EXPECT_EQ(NativeTensorName("layers.3.mlp2.my_self_attn.x"), "layers.3.mlp2.my_self_attn.x");
  EXPECT_EQ(NativeTensorName("model.model.x"), "model.x");
  EXPECT_EQ(NativeTensorName("x.model."), "x.model.");
  EXPECT_EQ(NativeTensorName(""), "");
}

TEST_F(TinyVariant, AliasesOpenAsNativeNames) {
  for (StoredTensor& tensor : tensors_) {
    std::string name = "model." + tensor.name;
    for (const auto& [native, alias] :
         {std::pair(".attn.", ".self_attn."), std::pair(".ffn.", ".mlp."),
          std::pair(".gate.bias", ".gate.e_score_correction_bias")}) {
      if (const size_t at = name.find(native); at != std::string::npos) {
        name.replace(at, std::strlen(native), alias);
      }
    }
    if (name.ends_with(".scale")) name.replace(name.size() - 5, 5, "weight_scale_inv");
    tensor.name = name;
  }
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->tensors().size(), file_->tensors().size());
  for (const StoredTensor& tensor : file_->tensors()) {
    const StoredTensor* found = opened->Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    ASSERT_EQ(std::memcmp(found->data.data(), tensor.data.data(), tensor.data.size()), 0);
  }
}

TEST_F(TinyVariant, SharedCopiesInTheMtpBlockAreSkipped) {
  for (const char* name : {"mtp.0.emb.tok_emb.weight", "mtp.0.embed.weight", "mtp.0.head.weight"}) {
    tensors_.push_back(tensors_.front());
    tensors_.back().name = name;
  }
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->tensors().size(), file_->tensors().size());
  ASSERT_EQ(opened->notes().size(), 1u);
  EXPECT_THAT(opened->notes()[0], HasSubstr("3 mtp tensors skipped"));
}

TEST_F(TinyVariant, WithoutMtpTensorsThereAreNoMtpBlocks) {
  ASSERT_GT(EraseMtp(), 0u);
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_TRUE(opened->config().mtp_compress_ratios.empty());
  ASSERT_EQ(opened->notes().size(), 1u);
  EXPECT_THAT(opened->notes()[0], HasSubstr("there are no mtp tensors"));
}

TEST_F(TinyVariant, MtpBlocksThatTheConfigDoesNotAnnounceAreSkipped) {
  config_["num_nextn_predict_layers"] = 0;
  config_["compress_ratios"].erase(6);
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->Find("mtp.0.norm.weight"), nullptr);
  ASSERT_EQ(opened->notes().size(), 1u);
  EXPECT_THAT(opened->notes()[0], HasSubstr("announces fewer blocks"));
}

TEST_F(TinyVariant, DSparkDrafterIsSkipped) {
  config_["dspark_block_size"] = 5;
  config_["compress_ratios"] = {0, 0, 4, 128, 4, 128, 0, 0, 0};
  ASSERT_GT(EraseMtp(), 0u);
  const size_t num_main = tensors_.size();
  for (const char* name : {"mtp.0.main_proj.weight", "mtp.2.markov_head.markov_w1.weight"}) {
    tensors_.push_back(tensors_.front());
    tensors_.back().name = name;
  }
  auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_TRUE(opened->config().has_dspark);
  EXPECT_EQ(opened->tensors().size(), num_main);
  ASSERT_EQ(opened->notes().size(), 1u);
  EXPECT_THAT(opened->notes()[0], HasSubstr("2 mtp tensors skipped: the DSpark drafter"));
}

// Experts of other formats, whose config.json does not tell.
TEST_F(TinyVariant, OtherExpertFormatsAreRefusedByName) {
  config_.erase("expert_dtype");
  const auto expert = std::find_if(tensors_.begin(), tensors_.end(), [](const auto& t) {
    return t.name == "layers.0.ffn.experts.0.w1.weight";
  });
  ASSERT_NE(expert, tensors_.end());
  const StoredTensor packed = *expert;
  const std::vector<std::byte> wide(4 * packed.data.size());
  const std::pair<DType, const char*> cases[] = {{DType::kF8E4M3, "fp8 (as in the -Base"},
                                                 {DType::kBF16, "unquantised"}};
  for (const auto& [dtype, expected] : cases) {
    expert->dtype = dtype;
    expert->shape = {packed.shape[0], 2 * packed.shape[1]};
    expert->data =
        std::span(wide).first(2 * packed.data.size() * static_cast<size_t>(DTypeBytes(dtype)));
    auto opened = Open();
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(opened.status().message(),
                AllOf(HasSubstr(expected), HasSubstr("DeepSeek-V4-Flash")));
  }
  *expert = packed;
  expert->dtype = DType::kU8;
  StoredTensor scale = packed;
  scale.name = "layers.0.ffn.experts.0.w1.weight_scale_2";
  scale.dtype = DType::kF32;
  scale.shape = {1};
  scale.data = std::span(wide).first(4);
  tensors_.push_back(scale);
  auto opened = Open();
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.status().message(), HasSubstr("NVFP4"));
}

}  // namespace
}  // namespace fathom
