#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/catalogue.h"
#include "checkpoint/names.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

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

// The size of an official checkpoint, as sparse files: only headers take space on disk.
TEST(Checkpoint, OpensAllOfFlash) {
  TempDirectory directory;
  const std::string config_text = ReadText(SourceDir() / "models/presets/flash.json");
  WriteText(directory.path() / "config.json", config_text);
  auto config = ParseModelConfig(config_text, "flash.json");
  ASSERT_TRUE(config.ok()) << config.status().ToString();

  struct Shard {
    Json header = Json::object();
    uint64_t bytes = 0;
  };
  std::map<std::string, Shard> shards;  // one per layer, as published
  Json index = {{"weight_map", Json::object()}};
  auto tensors = ExpectedTensors(*config);
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return DTypeBytes(a.dtype) > DTypeBytes(b.dtype);
  });
  for (const ExpectedTensor& tensor : tensors) {
    std::string file = "rest.safetensors";
    if (tensor.name.starts_with("layers.")) {
      file = "model-" + tensor.name.substr(7, tensor.name.find('.', 7) - 7) + ".safetensors";
    }
    Shard& shard = shards[file];
    const uint64_t end = shard.bytes + tensor.bytes();
    shard.header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                                 {"shape", tensor.shape},
                                 {"data_offsets", {shard.bytes, end}}};
    shard.bytes = end;
    index["weight_map"][tensor.name] = file;
  }
  WriteText(directory.path() / "model.safetensors.index.json", index.dump());
  for (const auto& [file, shard] : shards) {
    std::string header = shard.header.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    std::string prefix(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(prefix.data(), &length, sizeof length);
    WriteText(directory.path() / file, prefix + header);
    std::filesystem::resize_file(directory.path() / file, 8 + header.size() + shard.bytes);
  }

  const auto start = std::chrono::steady_clock::now();
  auto opened = Checkpoint::Open(directory.path());
  const auto end = std::chrono::steady_clock::now();
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  RecordProperty(
      "open_ms",
      std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(end - start).count()));
  EXPECT_EQ(opened->num_files(), 44);
  EXPECT_EQ(opened->tensors().size(), 69'187u);
  EXPECT_EQ(opened->total_bytes(), 159'609'485'896u);
}

}  // namespace
}  // namespace fathom
