// Damaged model directories, made from tiny-a: cut files, indexes that lie, configs that do not
// fit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// tiny-a split into two shards with an index, and a place to change any of it.
class HostileCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tiny = SafetensorsFile::Open(TinyA() / "model.safetensors");
    ASSERT_TRUE(tiny.ok()) << tiny.status().ToString();
    tensors_ = tiny->tensors();
    file_.emplace(std::move(*tiny));
    config_ = Json::parse(ReadText(TinyA() / "config.json"));
    index_ = {{"metadata", {{"total_size", 9'301'970}}}, {"weight_map", Json::object()}};
    for (size_t i = 0; i < tensors_.size(); ++i) {
      index_["weight_map"][tensors_[i].name] = i < tensors_.size() / 2 ? kFirst : kSecond;
    }
  }

  // Writes config and index as they are now, and the shards.
  void WriteSharded() {
    WriteText(directory_.path() / "config.json", config_.dump());
    WriteText(IndexPath(), index_.dump());
    const std::span<const StoredTensor> all(tensors_);
    ASSERT_TRUE(WriteSafetensors(directory_.path() / kFirst, all.first(all.size() / 2)).ok());
    ASSERT_TRUE(WriteSafetensors(directory_.path() / kSecond, all.subspan(all.size() / 2)).ok());
  }
  void WriteSingle() {
    WriteText(directory_.path() / "config.json", config_.dump());
    ASSERT_TRUE(WriteSafetensors(directory_.path() / "model.safetensors", tensors_).ok());
  }
  // `file` is empty where the model as a whole does not fit together.
  void ExpectRefused(const std::string& file, const std::string& expected) {
    const auto named = file.empty() ? directory_.path() : directory_.path() / file;
    auto opened = Checkpoint::Open(directory_.path());
    ASSERT_FALSE(opened.ok()) << expected;
    EXPECT_THAT(opened.status().message(),
                AllOf(HasSubstr(named.string() + ": "), HasSubstr(expected)));
    EXPECT_LT(opened.status().message().size(), 6000u);
  }
  StoredTensor& Tensor(const std::string& name) {
    const auto it = std::find_if(tensors_.begin(), tensors_.end(),
                                 [&](const StoredTensor& t) { return t.name == name; });
    EXPECT_NE(it, tensors_.end()) << name;
    return *it;
  }
  void Erase(const std::string& name) {
    Tensor(name);
    std::erase_if(tensors_, [&](const StoredTensor& t) { return t.name == name; });
  }
  [[nodiscard]] std::filesystem::path IndexPath() const { return directory_.path() / kIndex; }

  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";
  static constexpr const char* kIndex = "model.safetensors.index.json";

  TempDirectory directory_;
  std::optional<SafetensorsFile> file_;
  std::vector<StoredTensor> tensors_;
  Json config_;
  Json index_;
};

TEST_F(HostileCheckpoint, UnchangedItOpensBothWays) {
  WriteSharded();
  auto sharded = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(sharded.ok()) << sharded.status().ToString();
  EXPECT_EQ(sharded->num_files(), 2);
  EXPECT_TRUE(sharded->notes().empty());
  WriteSingle();
  auto single = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(single.ok()) << single.status().ToString();
  EXPECT_EQ(single->num_files(), 1);
  ASSERT_EQ(single->notes().size(), 1u);
  EXPECT_THAT(single->notes()[0], HasSubstr("index.json ignored"));
}

TEST_F(HostileCheckpoint, EmptyDirectory) { ExpectRefused("config.json", "cannot open"); }

TEST_F(HostileCheckpoint, OnlyConfig) {
  WriteText(directory_.path() / "config.json", config_.dump());
  ExpectRefused("", "neither model.safetensors nor");
}

TEST_F(HostileCheckpoint, ModelIsADirectory) {
  WriteText(directory_.path() / "config.json", config_.dump());
  std::filesystem::create_directory(directory_.path() / "model.safetensors");
  ExpectRefused("model.safetensors", "not a regular file");
}

TEST_F(HostileCheckpoint, CutAtManyPlaces) {
  WriteSingle();
  const auto path = directory_.path() / "model.safetensors";
  const auto size = std::filesystem::file_size(path);
  // From the end, so that one file serves; odd steps hit headers, names and numbers at random
  // places.
  for (uintmax_t left = size - 1; left > 0; left = left > 60'000 ? left * 3 / 4 : left * 19 / 20) {
    std::filesystem::resize_file(path, left);
    ExpectRefused("model.safetensors", "");
  }
}

TEST_F(HostileCheckpoint, IndexNamesAMissingShard) {
  WriteSharded();
  std::filesystem::remove(directory_.path() / kSecond);
  ExpectRefused(kIndex, "shard \"model-00002-of-00002.safetensors\" is missing");
}

TEST_F(HostileCheckpoint, ShardsHoldGarbage) {
  WriteSharded();
  WriteText(directory_.path() / kSecond, "garbage, much longer than eight bytes");
  ExpectRefused(kSecond, "header of");
  WriteText(directory_.path() / kSecond, "");
  ExpectRefused(kSecond, "0 bytes are too few");
}

TEST_F(HostileCheckpoint, ShardsAreSwapped) {
  WriteSharded();
  std::filesystem::rename(directory_.path() / kFirst, directory_.path() / "x");
  std::filesystem::rename(directory_.path() / kSecond, directory_.path() / kFirst);
  std::filesystem::rename(directory_.path() / "x", directory_.path() / kSecond);
  ExpectRefused(kIndex, "which does not hold it");
}

TEST_F(HostileCheckpoint, IndexListsWhatNoShardHolds) {
  index_["weight_map"]["layers.99.ghost"] = kFirst;
  WriteSharded();
  ExpectRefused(kIndex, "\"layers.99.ghost\": listed in model-00001-of-00002.safetensors");
}

TEST_F(HostileCheckpoint, IndexLeavesOutATensor) {
  index_["weight_map"].erase("norm.weight");
  WriteSharded();
  ExpectRefused(kIndex, "\"norm.weight\": stored in model-00002-of-00002.safetensors, not listed");
}

TEST_F(HostileCheckpoint, IndexNamesTheWrongShard) {
  index_["weight_map"]["norm.weight"] = kFirst;
  WriteSharded();
  ExpectRefused(kIndex, "stored in model-00002-of-00002.safetensors, listed in model-00001");
}

TEST_F(HostileCheckpoint, IndexLeavesTheDirectory) {
  for (const char* name :
       {"../x.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..\\x.safetensors", "..", "",
        "/etc/passwd", ".safetensors", "..safetensors", "x.bin", "."}) {
    index_["weight_map"]["norm.weight"] = name;
    WriteSharded();
    ExpectRefused(kIndex, "is not the name of a .safetensors file in this directory");
  }
  index_["weight_map"]["norm.weight"] = std::string("a\0.safetensors", 14);
  WriteSharded();
  ExpectRefused(kIndex, "\"a\\x00.safetensors\" is not the name");
}

TEST_F(HostileCheckpoint, IndexIsMalformed) {
  WriteSharded();
  const std::string many(200'000, '[');
  const std::pair<std::string, const char*> cases[] = {
      {"", "not well-formed"},
      {"{", "not well-formed"},
      {"[]", "not a JSON object"},
      {"3", "not a JSON object"},
      {"null", "not a JSON object"},
      {"{}", "no weight_map"},
      {R"({"weight_map":{}})", "no weight_map with entries"},
      {R"({"weight_map":[]})", ""},
      {R"({"weight_map":"x"})", "weight_map is no object"},
      {R"({"weight_map":{"a":1}})", "weight_map entry is no string"},
      {R"({"weight_map":{"a":null}})", "weight_map entry is no string"},
      {R"({"weight_map":{"a":["x.safetensors"]}})", "weight_map entry is no string"},
      {R"({"weight_map":{"a":{"b":"x.safetensors"}}})", "weight_map entry is no string"},
      {R"({"weight_map":{"a":"x.safetensors"},"weight_map":{}})", "two entries weight_map"},
      {R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})", "listed twice"},
      {"{\"weight_map\":{\"a\xff\":\"x.safetensors\"}}", "not well-formed"},
      {R"({"weight_map":{"a":"x.safetensors"}} x)", "not well-formed"},
      {R"({"weight_map":{"a":"x.safetensors"}})" + std::string("\0", 1), "NUL"},
      {"{\"x\":" + many, "nested too deeply"},
      {"{\"metadata\":{\"x\":" + many, "nested too deeply"},
      {many, "not a JSON object"},
      {std::string(300'000, '{'), "not well-formed"},
      {R"({"metadata":{"total_size":1e999},"weight_map":{}})", "not well-formed"},
  };
  for (const auto& [text, expected] : cases) {
    WriteText(IndexPath(), text);
    ExpectRefused(kIndex, expected);
  }
}

TEST_F(HostileCheckpoint, WrongTotalSizeIsANote) {
  index_["metadata"]["total_size"] = 5;
  WriteSharded();
  auto opened = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  ASSERT_EQ(opened->notes().size(), 1u);
  EXPECT_THAT(opened->notes()[0], AllOf(HasSubstr("total_size is 5"), HasSubstr("9301970")));
}

TEST_F(HostileCheckpoint, EveryKindOfMismatchIsListedAtOnce) {
  Erase("layers.3.attn.wkv.scale");
  Tensor("norm.weight").shape = {128, 2};
  Tensor("layers.5.ffn.gate.bias").dtype = DType::kI32;
  Tensor("layers.0.ffn.experts.7.w2.weight").name = "layers.0.ffn.experts.8.w2.weight";
  WriteSingle();
  ExpectRefused("", "layers.3.attn.wkv.scale: missing, config needs F8_E8M0 [1, 2]");
  ExpectRefused("", "norm.weight: BF16 [128, 2], config needs BF16 [256]");
  ExpectRefused("", "layers.5.ffn.gate.bias: I32 [8], config needs F32 [8]");
  ExpectRefused("", "layers.0.ffn.experts.7.w2.weight: missing");
  ExpectRefused("", "\"layers.0.ffn.experts.8.w2.weight\": unexpected");
  ExpectRefused("", "5 problems");
}

TEST_F(HostileCheckpoint, ListOfMismatchesIsCut) {
  config_["moe_intermediate_size"] = 256;
  WriteSingle();
  ExpectRefused("", "more");
}

TEST_F(HostileCheckpoint, ConfigOfAFarLargerModelIsRefusedBeforeItsCatalogueIsBuilt) {
  config_["num_hidden_layers"] = 1024;
  config_["n_routed_experts"] = 4096;
  config_["compress_ratios"] = std::vector<int>(1024, 0);
  WriteSingle();
  ExpectRefused("", "config.json describes at least 25165824 tensors, the files hold 585");
}

TEST_F(HostileCheckpoint, ConfigDamageIsNamed) {
  WriteSingle();
  for (const std::string& text : {std::string(), std::string("{"), std::string("\xff"),
                                  std::string(100'000, '['), std::string("{\"vocab_size\":1}")}) {
    WriteText(directory_.path() / "config.json", text);
    ExpectRefused("config.json", "");
  }
}

TEST_F(HostileCheckpoint, HashTableWithAnUnknownExpert) {
  for (const int64_t bad : {int64_t{8}, int64_t{-1}, int64_t{1} << 40}) {
    StoredTensor& table = Tensor("layers.1.ffn.gate.tid2eid");
    std::vector<int64_t> values(512 * 2, 7);
    values[301] = bad;
    table.data = std::as_bytes(std::span(values));
    WriteSingle();
    ExpectRefused("", "layers.1.ffn.gate.tid2eid: token 150 goes to expert " + std::to_string(bad) +
                          ", the config has 8");
  }
}

TEST_F(HostileCheckpoint, OneTensorUnderTwoSpellings) {
  StoredTensor copy = Tensor("layers.0.attn.wkv.scale");
  copy.name = "model.layers.0.self_attn.wkv.weight_scale_inv";
  tensors_.push_back(copy);
  WriteSingle();
  ExpectRefused("", "\"layers.0.attn.wkv.scale\": stored twice");
}

TEST_F(HostileCheckpoint, HalfAnMtpBlockIsAnError) {
  Erase("mtp.0.e_proj.weight");
  WriteSingle();
  ExpectRefused("", "mtp.0.e_proj.weight: missing");
}

TEST_F(HostileCheckpoint, OddMtpNamesAreUnexpected) {
  for (const char* name : {"mtp.x.norm.weight", "mtp.", "mtp.0", "mtp.-1.norm.weight",
                           "mtp.99999999999999999999.norm.weight", "mtp.00.norm.weight"}) {
    StoredTensor extra = Tensor("norm.weight");
    extra.name = name;
    tensors_.push_back(extra);
    WriteSingle();
    ExpectRefused("", "\"" + std::string(name) + "\": unexpected");
    tensors_.pop_back();
  }
}

}  // namespace
}  // namespace fathom
