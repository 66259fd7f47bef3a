#include "checkpoint/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>

#include "checkpoint/generation_config.h"
#include "checkpoint/synth_test_data.h"

namespace fathom {
namespace {

using namespace synth_test;  // NOLINT(google-build-using-namespace): these tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

TEST(Synth, EveryPresetOpensWithoutNotes) {
  for (const char* preset : {"tiny", "nano"}) {
    TempDirectory directory;
    ASSERT_TRUE(Write(Preset(preset), directory.path()).ok()) << preset;
    auto opened = Checkpoint::Open(directory.path());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    EXPECT_THAT(opened->notes(), IsEmpty()) << preset;
    const SynthPlan plan = Plan(Preset(preset));
    EXPECT_EQ(opened->total_bytes(), plan.total_bytes);
    EXPECT_EQ(opened->tensors().size(), plan.num_tensors);
    EXPECT_EQ(static_cast<size_t>(opened->num_files()), plan.shards.size());
    auto generation = LoadGenerationConfig(directory.path());
    ASSERT_TRUE(generation.ok());
    EXPECT_THAT(generation->eos_token_ids, ElementsAre(1));
    const Json index = Json::parse(ReadText(directory.path() / "model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], plan.total_bytes);
    EXPECT_FALSE(fs::exists(directory.path() / "tokenizer.json"));
  }
}

TEST(Synth, ShardsOfFlashAndProAreThePublishedOnes) {
  const SynthPlan flash = Plan(Preset("flash"));
  ASSERT_THAT(flash.shards, SizeIs(46));
  EXPECT_EQ(flash.total_bytes, 159'609'485'896u);
  EXPECT_EQ(flash.num_tensors, 69'187u);
  EXPECT_EQ(flash.shards[0].file, "model-00001-of-00046.safetensors");
  ASSERT_THAT(flash.shards[0].tensors, SizeIs(1));
  EXPECT_EQ(flash.shards[0].tensors[0].name, "embed.weight");
  EXPECT_EQ(flash.shards[1].bytes, 3'566'148'952u);  // model.md 4.5, per layer
  EXPECT_EQ(flash.shards[3].bytes, 3'596'055'640u);
  EXPECT_THAT(flash.shards[44].tensors, SizeIs(5));  // norm, head, hc_head_*
  EXPECT_EQ(flash.shards[45].bytes, 3'593'787'756u);
  EXPECT_THAT(Plan(Preset("pro")).shards, SizeIs(64));
}

TEST(Synth, MidHasTheSizeOfTheComparisonModel) {
  const SynthPlan mid = Plan(Preset("mid"));
  EXPECT_GT(mid.total_bytes, 2'800'000'000u);
  EXPECT_LT(mid.total_bytes, 3'100'000'000u);
  EXPECT_THAT(mid.shards, SizeIs(14));
  EXPECT_THAT(mid.config.mtp_compress_ratios, IsEmpty());
}

// The published totals of the re-packs (model.md 1.3).
TEST(Synth, DSparkRepacksHaveThePublishedInventory) {
  SynthOptions options;
  options.dialect.dspark = true;
  const SynthPlan flash = Plan(Preset("flash"), options);
  EXPECT_EQ(flash.num_tensors, 72'317u);
  EXPECT_EQ(flash.total_bytes, 166'878'536'440u);
  EXPECT_THAT(flash.shards, SizeIs(48));
  EXPECT_THAT(flash.shards[45].tensors, SizeIs(1'568));
  EXPECT_THAT(flash.shards[46].tensors, SizeIs(1'565));
  EXPECT_THAT(flash.shards[47].tensors, SizeIs(1'572));
  const Json config = Json::parse(flash.config_text);
  EXPECT_EQ(config["dspark_target_layer_ids"], (Json{40, 41, 42}));
  EXPECT_EQ(config["dspark_noise_token_id"], 128799);
  EXPECT_THAT(config["compress_ratios"], SizeIs(46));
  options.dialect.dspark_markov_rank = 512;
  const SynthPlan pro = Plan(Preset("pro"), options);
  EXPECT_EQ(pro.num_tensors, 149'782u);
  EXPECT_EQ(pro.total_bytes, 892'727'580'904u);
  EXPECT_THAT(pro.shards, SizeIs(66));
}

TEST(Synth, BytesDependOnGeometryAndSeedOnly) {
  TempDirectory one, other, cut, reseeded;
  SynthOptions options;
  ASSERT_TRUE(Write(Preset("tiny"), one.path(), options, 1).ok());
  ASSERT_TRUE(Write(Preset("tiny"), other.path(), options, 3).ok());
  for (const std::string& name : FileNames(one.path())) {
    EXPECT_EQ(ReadText(one.path() / name), ReadText(other.path() / name)) << name;
  }
  options.max_shard_bytes = 100'000;
  ASSERT_TRUE(Write(Preset("tiny"), cut.path(), options).ok());
  EXPECT_GT(FileNames(cut.path()).size(), FileNames(one.path()).size());
  EXPECT_EQ(ReadTensors(cut.path()), ReadTensors(one.path()));
  options.seed = 2;
  ASSERT_TRUE(Write(Preset("tiny"), reseeded.path(), options).ok());
  const Tensors before = ReadTensors(one.path());
  for (const auto& [name, bytes] : ReadTensors(reseeded.path())) {
    if (bytes.size() < 16) continue;  // few scales may well be equal
    EXPECT_NE(bytes, before.at(name)) << name;
  }
}

// Another machine, compiler or C library must not change a checkpoint: a hash of each recipe, as
// this code gave it when it was written.
TEST(Synth, TheBytesOfSeed1AreThese) {
  TempDirectory directory;
  ASSERT_TRUE(Write(Preset("tiny"), directory.path()).ok());
  const Tensors tensors = ReadTensors(directory.path());
  const auto hash = [&](const std::string& name) {
    uint32_t h = 2166136261u;  // FNV-1a
    for (const std::byte b : tensors.at(name)) h = (h ^ static_cast<uint32_t>(b)) * 16777619u;
    return h;
  };
  EXPECT_EQ(hash("embed.weight"), 3228239113u);
  EXPECT_EQ(hash("layers.1.attn.wq_b.weight"), 1435262572u);
  EXPECT_EQ(hash("layers.1.attn.wq_b.scale"), 3064475433u);
  EXPECT_EQ(hash("layers.1.attn.attn_sink"), 2653169443u);
  EXPECT_EQ(hash("layers.1.hc_attn_base"), 733749760u);
  EXPECT_EQ(hash("layers.0.ffn.gate.tid2eid"), 2004671618u);
  EXPECT_EQ(hash("layers.0.ffn.experts.3.w2.weight"), 1285536873u);
  EXPECT_EQ(hash("layers.0.ffn.experts.3.w2.scale"), 4044628956u);
}

TEST(Synth, ExpertTablesWithEveryExpertInEveryRow) {
  GeometryChanges changes;
  changes.experts_per_token = 8;
  auto config = ChangeGeometry(Preset("tiny"), "tiny", changes);
  ASSERT_TRUE(config.ok());
  TempDirectory directory;
  ASSERT_TRUE(Write(*config, directory.path()).ok());
  EXPECT_TRUE(Checkpoint::Open(directory.path()).ok());
}

TEST(Synth, ADirectoryInUseIsLeftAloneUnlessAskedFor) {
  TempDirectory directory;
  WriteText(directory.path() / "notes.txt", "mine");
  WriteText(directory.path() / "model.safetensors", "old");
  WriteText(directory.path() / "tokenizer.json", "old");
  const Status refused = Write(Preset("tiny"), directory.path());
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("not empty"));
  EXPECT_THAT(FileNames(directory.path()), SizeIs(3));
  SynthOptions options;
  options.overwrite = true;
  ASSERT_TRUE(Write(Preset("tiny"), directory.path(), options).ok());
  auto opened = Checkpoint::Open(directory.path());
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_THAT(opened->notes(), IsEmpty());
  EXPECT_EQ(ReadText(directory.path() / "notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(directory.path() / "tokenizer.json"));
  EXPECT_THAT(Write(Preset("tiny"), directory.path() / "notes.txt").message(),
              HasSubstr("no directory"));
}

TEST(Synth, TokenizersAreCopiedAndAMissingOneIsAnError) {
  TempDirectory directory;
  SynthOptions options;
  options.tokenizer_directory = SourceDir() / "models/fathom-nano";
  ASSERT_TRUE(Write(Preset("tiny"), directory.path() / "a", options).ok());
  EXPECT_EQ(ReadText(directory.path() / "a/tokenizer.json"),
            ReadText(options.tokenizer_directory / "tokenizer.json"));
  EXPECT_TRUE(fs::exists(directory.path() / "a/tokenizer_config.json"));
  options.tokenizer_directory = directory.path();
  EXPECT_THAT(Write(Preset("tiny"), directory.path() / "b", options).message(),
              HasSubstr("tokenizer.json"));
  EXPECT_FALSE(fs::exists(directory.path() / "b"));
  options.tokenizer_directory = directory.path() / "a";
  options.overwrite = true;
  EXPECT_THAT(Write(Preset("tiny"), directory.path() / "a", options).message(),
              HasSubstr("must come from elsewhere"));
  EXPECT_TRUE(fs::exists(directory.path() / "a/tokenizer.json"));
}

TEST(Synth, ADiskTooSmallIsToldBeforeWriting) {
  GeometryChanges changes;  // hundreds of terabytes
  changes.layers = 1024;
  changes.hidden = 1 << 17;
  changes.moe_intermediate = 1 << 17;
  auto config = ChangeGeometry(Preset("tiny"), "tiny", changes);
  ASSERT_TRUE(config.ok());
  TempDirectory directory;
  WriteText(directory.path() / "model.safetensors", "old");
  SynthOptions options;
  options.overwrite = true;
  const Status status = Write(*config, directory.path(), options);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("are free, the checkpoint needs"));
  EXPECT_EQ(ReadText(directory.path() / "model.safetensors"), "old");
  EXPECT_FALSE(Write(*config, directory.path() / "new").ok());
  EXPECT_FALSE(fs::exists(directory.path() / "new"));
}

// A file-size limit stands for a disk that fills up in the middle of a shard.
TEST(Synth, AWriteThatFailsLeavesNothingBehind) {
  TempDirectory directory;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1'400'000;  // the embedding (1.3 MB) fits, the second layer does not
  auto* const old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = Write(Preset("tiny"), directory.path());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("model-00003-of-00007.safetensors: cannot write: File"));
  EXPECT_THAT(FileNames(directory.path()), IsEmpty());
}

TEST(Synth, ProgressReachesTheTotalAndCancelLeavesNothing) {
  TempDirectory directory;
  SynthOptions options;
  options.overwrite = true;
  std::vector<uint64_t> seen;
  options.on_progress = [&](uint64_t done, uint64_t) { seen.push_back(done); };
  ASSERT_TRUE(Write(Preset("tiny"), directory.path(), options).ok());
  EXPECT_EQ(seen.front(), 0u);
  EXPECT_EQ(seen.back(), Plan(Preset("tiny")).total_bytes);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));

  std::atomic<bool> cancel{false};
  options.cancel = &cancel;
  options.on_progress = [&](uint64_t done, uint64_t total) { cancel = done > total / 2; };
  EXPECT_EQ(Write(Preset("tiny"), directory.path(), options).code(), StatusCode::kCancelled);
  EXPECT_THAT(FileNames(directory.path()), IsEmpty());
}

}  // namespace
}  // namespace fathom
