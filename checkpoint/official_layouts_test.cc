// The published checkpoints at full size: names, shapes and shards as published, in sparse files,
// so that only headers take space on disk. Counts and bytes are the published index totals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/catalogue.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Three stages of a drafter (model.md 1.3): each a scored block of ratio 0, the first with the
// projection of the target layers, the last with a head and the Markov matrices.
std::vector<ExpectedTensor> DSparkTensors(ModelConfig c, int markov_rank) {
  constexpr int kStages = 3;
  c.mtp_compress_ratios.assign(kStages, 0);
  const int64_t hidden = c.hidden_size;
  std::vector<ExpectedTensor> all;
  for (int stage = 0; stage < kStages; ++stage) {
    const std::string prefix = "mtp." + std::to_string(stage) + ".";
    const bool last = stage == kStages - 1;
    for (ExpectedTensor& tensor : ExpectedMtpTensors(c, stage)) {
      const std::string name = tensor.name.substr(prefix.size());
      if (name.starts_with("e_proj") || name.starts_with("h_proj") || name == "enorm.weight" ||
          name == "hnorm.weight") {
        continue;
      }
      if (!last && (name == "norm.weight" || name.starts_with("hc_head_"))) continue;
      all.push_back(std::move(tensor));
    }
    if (stage == 0) {
      all.push_back({prefix + "main_proj.weight", DType::kF8E4M3, {hidden, 3 * hidden}});
      all.push_back({prefix + "main_proj.scale", DType::kF8E8M0, {hidden / 128, 3 * hidden / 128}});
      all.push_back({prefix + "main_norm.weight", DType::kBF16, {hidden}});
    }
    if (last) {
      for (const char* name : {"markov_w1", "markov_w2"}) {
        all.push_back({prefix + "markov_head." + name + ".weight",
                       DType::kBF16,
                       {c.vocab_size, markov_rank}});
      }
      all.push_back(
          {prefix + "confidence_head.proj.weight", DType::kBF16, {1, hidden + markov_rank}});
    }
  }
  return all;
}

// Writes `tensors` as published: the embedding, one shard per layer, norm and head, one shard per
// drafter stage or MTP block; returns the number of shards.
int WriteSparse(const std::filesystem::path& directory, std::vector<ExpectedTensor> tensors) {
  struct Shard {
    Json header = Json::object();
    uint64_t bytes = 0;
  };
  std::map<std::string, Shard> shards;
  Json index = {{"weight_map", Json::object()}};
  uint64_t total = 0;
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return DTypeBytes(a.dtype) > DTypeBytes(b.dtype);
  });
  for (const ExpectedTensor& tensor : tensors) {
    std::string part = "head";
    if (tensor.name == "embed.weight") part = "embed";
    if (tensor.name.starts_with("layers.") || tensor.name.starts_with("mtp.")) {
      part = tensor.name.substr(0, tensor.name.find('.', tensor.name.find('.') + 1));
    }
    const std::string file = "model-" + part + ".safetensors";
    Shard& shard = shards[file];
    const uint64_t end = shard.bytes + tensor.bytes();
    shard.header[tensor.name] = {{"dtype", DTypeName(tensor.dtype)},
                                 {"shape", tensor.shape},
                                 {"data_offsets", {shard.bytes, end}}};
    shard.bytes = end;
    total += tensor.bytes();
    index["weight_map"][tensor.name] = file;
  }
  index["metadata"] = {{"total_size", total}};
  WriteText(directory / "model.safetensors.index.json", index.dump());
  for (const auto& [file, shard] : shards) {
    std::string header = shard.header.dump();
    header.append((8 - header.size() % 8) % 8, ' ');
    std::string prefix(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(prefix.data(), &length, sizeof length);
    WriteText(directory / file, prefix + header);
    std::filesystem::resize_file(directory / file, 8 + header.size() + shard.bytes);
  }
  return static_cast<int>(shards.size());
}

struct Layout {
  const char* name;
  const char* preset;
  int markov_rank;  // 0: an MTP block; -1: neither, although the config announces a block
  int shards;
  uint64_t tensors, bytes;            // published, of all files
  uint64_t used_tensors, used_bytes;  // without the drafter
};
void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

Json ConfigOf(const Layout& layout) {
  Json json = Json::parse(
      ReadText(SourceDir() / "models/presets" / (std::string(layout.preset) + ".json")));
  if (layout.markov_rank > 0) {
    const int layers = json["num_hidden_layers"];
    json["dspark_block_size"] = 5;
    json["dspark_noise_token_id"] = 128799;
    json["dspark_target_layer_ids"] = {layers - 3, layers - 2, layers - 1};
    json["dspark_markov_rank"] = layout.markov_rank;
    json["compress_ratios"].push_back(0);
    json["compress_ratios"].push_back(0);
  }
  return json;
}

class OfficialLayout : public ::testing::TestWithParam<Layout> {};

TEST_P(OfficialLayout, OpensWithThePublishedTotals) {
  const Layout& layout = GetParam();
  TempDirectory directory;
  const std::string text = ConfigOf(layout).dump();
  WriteText(directory.path() / "config.json", text);
  auto config = ParseModelConfig(text, layout.name);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->has_dspark, layout.markov_rank > 0);

  std::vector<ExpectedTensor> tensors =
      layout.markov_rank < 0 ? ExpectedMainTensors(*config) : ExpectedTensors(*config);
  if (layout.markov_rank > 0) {
    for (ExpectedTensor& tensor : DSparkTensors(*config, layout.markov_rank)) {
      tensors.push_back(std::move(tensor));
    }
  }
  uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : tensors) bytes += tensor.bytes();
  EXPECT_EQ(tensors.size(), layout.tensors);
  EXPECT_EQ(bytes, layout.bytes);
  EXPECT_EQ(WriteSparse(directory.path(), std::move(tensors)), layout.shards);

  const auto start = std::chrono::steady_clock::now();
  auto opened = Checkpoint::Open(directory.path());
  const auto end = std::chrono::steady_clock::now();
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  RecordProperty(
      "open_ms",
      std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(end - start).count()));
  EXPECT_EQ(opened->num_files(), layout.shards);
  EXPECT_EQ(opened->tensors().size(), layout.used_tensors);
  EXPECT_EQ(opened->total_bytes(), layout.used_bytes);
  if (layout.markov_rank > 0) {
    EXPECT_TRUE(opened->config().mtp_compress_ratios.empty());
    EXPECT_THAT(opened->notes(),
                ElementsAre(std::to_string(layout.tensors - layout.used_tensors) +
                            " mtp tensors skipped: the DSpark drafter is not used"));
  } else if (layout.markov_rank < 0) {
    EXPECT_THAT(opened->notes(), ElementsAre(HasSubstr("there are no mtp tensors")));
  } else {
    EXPECT_TRUE(opened->notes().empty());
    EXPECT_THAT(opened->config().mtp_compress_ratios, ElementsAre(0));
  }
}

// Published: model.md 1.3. The re-packs have the layout of the release that they were made for.
constexpr uint64_t kFlashMain = 156'015'698'140;
constexpr uint64_t kProMain = 850'748'205'004;
constexpr Layout kLayouts[] = {
    {"Flash", "flash", 0, 46, 69'187, 159'609'485'896, 69'187, 159'609'485'896},
    {"Pro", "pro", 0, 64, 145'116, 864'704'792'696, 145'116, 864'704'792'696},
    {"Flash0731AndDSpark", "flash", 256, 48, 72'317, 166'878'536'440, 67'612, kFlashMain},
    {"Pro0813AndDSpark", "pro", 512, 66, 149'782, 892'727'580'904, 142'773, kProMain},
    {"FlashWithoutMtp", "flash", -1, 45, 67'612, kFlashMain, 67'612, kFlashMain}};
INSTANTIATE_TEST_SUITE_P(Published, OfficialLayout, ::testing::ValuesIn(kLayouts),
                         [](const auto& layout) { return std::string(layout.param.name); });

}  // namespace
}  // namespace fathom
