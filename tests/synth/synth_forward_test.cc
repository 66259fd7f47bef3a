// Random models compute: any geometry runs, and activations stay in the range of a trained model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "checkpoint/synth.h"
#include "tests/golden/golden.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = ::testing::TempDir() + "/fathom_synth_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempDirectory() { fs::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string Preset(const std::string& name) {
  auto file = MappedFile::Open(ProjectPath("models/presets/" + name + ".json"));
  EXPECT_TRUE(file.ok()) << file.status().ToString();
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

Status Write(const std::string& preset, const GeometryChanges& changes, const fs::path& directory,
             uint64_t seed = 1) {
  ThreadPool pool(2);
  SynthOptions options;
  options.seed = seed;
  FATHOM_ASSIGN_OR_RETURN(const std::string config,
                          ChangeGeometry(Preset(preset), preset, changes));
  FATHOM_ASSIGN_OR_RETURN(const SynthPlan plan, PlanSyntheticCheckpoint(config, preset, options));
  return WriteSyntheticCheckpoint(plan, directory, options, pool);
}

// The token pattern of tests/data/vectors/README.md.
std::vector<int32_t> Pattern(int64_t n, int vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<int32_t>(16 + (7 * i + (i * i) % 97) % (vocab - 32)));
  }
  return ids;
}

// What a forward pass does inside, over all of its steps.
class Statistics : public ForwardObserver {
 public:
  void OnHidden(int layer, TensorView<const float> hc) override {
    double sum = 0.0;
    for (const float v : hc.elements()) sum += std::fabs(v);
    hidden[layer] = sum / static_cast<double>(hc.size());
  }
  void OnTensor(int layer, std::string_view name, TensorView<const float> values) override {
    if (name != "attn_o" || layer != 0) return;
    attention_output.assign(values.elements().begin(), values.elements().end());
  }
  void OnEntries(int layer, TensorView<const int32_t> entries,
                 TensorView<const int32_t> num_entries) override {
    auto& rows = selected[layer];
    for (int64_t row = 0; row < entries.dim(0); ++row) {
      const auto n = static_cast<size_t>(num_entries.elements()[static_cast<size_t>(row)]);
      const auto all = entries.row(row).first(n);
      rows.emplace_back(all.begin(), all.end());
    }
  }
  void OnRoute(int layer, TensorView<const int32_t> experts,
               TensorView<const float> /*weights*/) override {
    for (const int32_t expert : experts.elements()) ++expert_uses[layer][expert];
  }

  std::map<int, double> hidden;  // mean magnitude in front of a layer
  std::map<int, std::vector<std::set<int32_t>>> selected;
  std::map<int, std::map<int32_t, int>> expert_uses;
  std::vector<float> attention_output;  // of layer 0
};

bool AllFinite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

// As Pro in depth: what grows or shrinks from layer to layer shows here.
TEST(SynthForward, ActivationsStaySaneOver61Layers) {
  TempDirectory directory;
  GeometryChanges changes;
  changes.layers = 61;
  changes.experts = 16;
  changes.experts_per_token = 4;
  ASSERT_TRUE(Write("tiny", changes, directory.path()).ok());
  constexpr int kTokens = 200;
  golden::Rig rig = golden::MakeRig(directory.path(), "cpu", Numerics::kOfficial, kTokens, kTokens);
  ASSERT_NE(rig.runner, nullptr);
  Statistics seen;
  const std::vector<float> logits = golden::AllLogits(rig, Pattern(kTokens, 2560), kTokens, &seen);
  ASSERT_TRUE(AllFinite(logits));

  ASSERT_EQ(seen.hidden.size(), 62u);
  for (const auto& [layer, magnitude] : seen.hidden) {
    EXPECT_GT(magnitude, 0.3) << "layer " << layer;
    EXPECT_LT(magnitude, 10.0) << "layer " << layer;
  }
  double spread = 0.0;
  for (const float v : logits) spread += static_cast<double>(v) * static_cast<double>(v);
  spread = std::sqrt(spread / static_cast<double>(logits.size()));
  EXPECT_GT(spread, 1.0);  // neither a flat nor a frozen distribution
  EXPECT_LT(spread, 6.0);

  double worst = 0.0;
  for (auto& [layer, uses] : seen.expert_uses) {
    EXPECT_GE(uses.size(), 12u) << "layer " << layer;  // of 16
    for (const auto& [expert, n] : uses) worst = std::max(worst, n / (kTokens * 4.0 / 16));
  }
  EXPECT_LT(worst, 3.9);  // 4: an expert that every token takes
  RecordProperty("worst_expert_load", std::to_string(worst));
  RecordProperty("last_hidden", std::to_string(seen.hidden.rbegin()->second));
}

TEST(SynthForward, TopKSelectsByContentNotByPlace) {
  TempDirectory directory;
  ASSERT_TRUE(Write("tiny", {}, directory.path()).ok());
  constexpr int kTokens = 320;  // 80 entries of ratio 4, of which 16 are taken
  golden::Rig rig = golden::MakeRig(directory.path(), "cpu", Numerics::kOfficial, kTokens, kTokens);
  ASSERT_NE(rig.runner, nullptr);
  Statistics seen;
  golden::AllLogits(rig, Pattern(kTokens, 2560), kTokens, &seen);
  for (const int layer : {1, 3}) {
    const auto& rows = seen.selected[layer];
    ASSERT_EQ(rows.size(), size_t{kTokens});
    ASSERT_EQ(rows.back().size(), 16u);
    std::set<int32_t> ever;
    int equal_to_previous = 0;
    for (size_t row = 160; row < rows.size(); ++row) {
      ever.insert(rows[row].begin(), rows[row].end());
      equal_to_previous += rows[row] == rows[row - 1];
    }
    EXPECT_GT(ever.size(), 40u) << "layer " << layer;       // not the first or the last ones
    EXPECT_LT(equal_to_previous, 40) << "layer " << layer;  // of 160: queries differ
  }
}

// Attention with the sinks against attention without: the share that the sinks take.
TEST(SynthForward, SinksTakeAModestShare) {
  TempDirectory directory, without;
  ASSERT_TRUE(Write("tiny", {}, directory.path()).ok());
  auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok());
  std::vector<StoredTensor> tensors(checkpoint->tensors().begin(), checkpoint->tensors().end());
  const std::vector<float> no_sinks(4, -1e30f);
  for (StoredTensor& tensor : tensors) {
    if (tensor.name == "layers.0.attn.attn_sink") {
      tensor.data = std::as_bytes(std::span(no_sinks));
    }
  }
  ASSERT_TRUE(WriteSafetensors(without.path() / "model.safetensors", tensors).ok());
  fs::copy_file(directory.path() / "config.json", without.path() / "config.json");

  constexpr int kTokens = 160;
  std::vector<float> outputs[2];
  for (const bool sinks : {true, false}) {
    golden::Rig rig = golden::MakeRig(sinks ? directory.path() : without.path(), "cpu",
                                      Numerics::kOfficial, kTokens, kTokens);
    ASSERT_NE(rig.runner, nullptr);
    Statistics seen;
    golden::AllLogits(rig, Pattern(kTokens, 2560), kTokens, &seen);
    outputs[sinks ? 0 : 1] = seen.attention_output;
  }
  ASSERT_EQ(outputs[0].size(), outputs[1].size());
  // Only rows with a full window of 128 positions.
  double with_sinks = 0.0;
  double reference = 0.0;
  for (size_t i = outputs[0].size() / kTokens * 128; i < outputs[0].size(); ++i) {
    with_sinks += static_cast<double>(outputs[0][i]) * static_cast<double>(outputs[1][i]);
    reference += static_cast<double>(outputs[1][i]) * static_cast<double>(outputs[1][i]);
  }
  ASSERT_GT(reference, 0.0);
  const double share = 1.0 - with_sinks / reference;
  RecordProperty("sink_share", std::to_string(share));
  EXPECT_GT(share, 0.005);
  EXPECT_LT(share, 0.4);
}

// Random geometries that a config may have; the reference backend has no fast paths to hide in.
TEST(SynthForward, RandomGeometriesRunOnTheReference) {
  std::mt19937 random(20260301);
  const auto pick = [&](std::initializer_list<int> values) {
    return *(values.begin() + static_cast<long>(random() % values.size()));
  };
  for (int round = 0; round < 12; ++round) {
    GeometryChanges c;
    c.hidden = pick({128, 256, 384});
    c.o_groups = pick({1, 2, 3});
    c.heads = *c.o_groups * pick({1, 2, 4});
    c.head_dim = pick({128, 192, 256});
    c.vocab = pick({64, 100, 257});
    c.moe_intermediate = pick({128, 256});
    c.experts = pick({1, 3, 8});
    c.experts_per_token = std::min(*c.experts, pick({1, 2, 6}));
    c.q_lora_rank = pick({128, 256});
    c.o_lora_rank = pick({128, 256});
    c.index_heads = pick({1, 4, 6});
    c.index_head_dim = pick({64, 128});
    c.index_topk = pick({1, 8, 64});
    c.window = pick({8, 16, 128});
    std::vector<int> ratios;
    const int layers = pick({1, 2, 3});
    for (int i = 0; i < layers; ++i) ratios.push_back(pick({0, 4, 128}));
    c.ratios = ratios;
    c.hash_layers = pick({0, 1});
    c.mtp = pick({0, 1}) == 1;
    TempDirectory directory;
    const Status written = Write("tiny", c, directory.path(), static_cast<uint64_t>(round));
    ASSERT_TRUE(written.ok()) << written.ToString();
    constexpr int kTokens = 40;
    golden::Rig rig =
        golden::MakeRig(directory.path(), "reference", Numerics::kOfficial, kTokens, kTokens);
    ASSERT_NE(rig.runner, nullptr) << "round " << round;
    EXPECT_TRUE(rig.checkpoint->notes().empty()) << rig.checkpoint->notes()[0];
    EXPECT_TRUE(AllFinite(golden::AllLogits(rig, Pattern(kTokens, *c.vocab), kTokens)))
        << "round " << round;
  }
}

// The program, from flags to files.
TEST(SynthCommand, WritesWhatItsFlagsSay) {
  TempDirectory directory;
  const auto run = [&](const std::string& flags) {
    const std::string command = std::string(FATHOM_BINARY_DIR "/fathom synth ") +
                                (directory.path() / "out").string() + " " + flags +
                                " >/dev/null 2>&1";
    return WEXITSTATUS(std::system(command.c_str()));
  };
  ASSERT_EQ(run("--ratios '0, 4,128' --experts 5 --no-mtp --seed 3 --max-shard-size 500KB "
                "--tokenizer " FATHOM_SOURCE_DIR "/models/fathom-nano"),
            0);
  auto opened = Checkpoint::Open(directory.path() / "out");
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(opened->config().compress_ratios, (std::vector<int>{0, 4, 128}));
  EXPECT_EQ(opened->config().num_experts, 5);
  EXPECT_TRUE(opened->config().mtp_compress_ratios.empty());
  EXPECT_GT(opened->num_files(), 6);
  EXPECT_TRUE(fs::exists(directory.path() / "out/tokenizer.json"));

  EXPECT_EQ(run(""), 1);  // not empty
  EXPECT_EQ(run("--force"), 0);
  EXPECT_EQ(run("--force --preset nano --mtp"), 0);
  EXPECT_EQ(run("--force --ratios 0,4,"), 1);
  EXPECT_EQ(run("--force --preset gigantic"), 1);
  EXPECT_EQ(run("--force --hidden 100"), 1);
  EXPECT_EQ(run("--force --vocab 100 --tokenizer " FATHOM_SOURCE_DIR "/models/fathom-nano"), 1);
  EXPECT_EQ(run("--force --hidden many"), 2);
}

}  // namespace
}  // namespace fathom
