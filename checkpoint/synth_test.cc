#include "checkpoint/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/formats.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/names.h"
#include "checkpoint/synth_tensor.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string Preset(const std::string& name) {
  return ReadText(SourceDir() / "models/presets" / (name + ".json"));
}

SynthPlan Plan(const std::string& config, const SynthOptions& options = {}) {
  auto plan = PlanSyntheticCheckpoint(config, "test", options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? std::move(plan).value() : SynthPlan{};
}

Status Write(const std::string& config, const fs::path& directory, const SynthOptions& options = {},
             int num_threads = 2) {
  ThreadPool pool(num_threads);
  FATHOM_ASSIGN_OR_RETURN(const SynthPlan plan, PlanSyntheticCheckpoint(config, "test", options));
  return WriteSyntheticCheckpoint(plan, directory, options, pool);
}

// Name -> bytes of all tensors.
using Tensors = std::map<std::string, std::vector<std::byte>>;
Tensors ReadTensors(const fs::path& directory) {
  Tensors tensors;
  auto opened = Checkpoint::Open(directory);
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  if (!opened.ok()) return tensors;
  for (const StoredTensor& t : opened->tensors()) {
    tensors[t.name] = {t.data.begin(), t.data.end()};
  }
  return tensors;
}

std::vector<std::string> FileNames(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

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

TEST(SyntheticTensor, AnyPartEqualsTheWhole) {
  const SynthPlan plan = Plan(Preset("tiny"));
  for (const SynthShard& shard : plan.shards) {
    for (const ExpectedTensor& spec : shard.tensors) {
      const SyntheticTensor tensor(plan.config, spec, 5);
      std::vector<std::byte> whole(spec.bytes());
      tensor.Fill(0, whole);
      ASSERT_LE(tensor.unit_bytes(), 2048u);
      ASSERT_EQ(kSynthPartBytes >= tensor.unit_bytes(), true);
      const uint64_t begin =
          std::min<uint64_t>(3, (whole.size() - 1) / tensor.unit_bytes()) * tensor.unit_bytes();
      std::vector<std::byte> part(whole.size() - begin);
      tensor.Fill(begin, part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(begin)))
          << spec.name;
    }
  }
}

struct Moments {
  double rms = 0.0;
  double mean = 0.0;
  double max = 0.0;
};
Moments MomentsOf(const std::vector<double>& values) {
  Moments m;
  for (const double v : values) {
    m.rms += v * v;
    m.mean += v;
    m.max = std::max(m.max, std::fabs(v));
  }
  m.rms = std::sqrt(m.rms / static_cast<double>(values.size()));
  m.mean /= static_cast<double>(values.size());
  return m;
}

// A matrix of the checkpoint as numbers, so that codes, scales and gains are judged together.
TEST(SyntheticTensor, QuantisedMatricesHaveTheirGain) {
  TempDirectory directory;
  ASSERT_TRUE(Write(Preset("tiny"), directory.path()).ok());
  auto opened = Checkpoint::Open(directory.path());
  ASSERT_TRUE(opened.ok());
  const auto matrix = [&](const std::string& name, bool fp4) {
    const StoredTensor& w = *opened->Find(name + ".weight");
    const StoredTensor& s = *opened->Find(name + ".scale");
    std::vector<double> values;
    std::set<int> scales;
    for (size_t i = 0; i < w.data.size(); ++i) {
      const auto code = static_cast<uint8_t>(w.data[i]);
      const auto width = static_cast<size_t>(w.shape[1]);
      const size_t at =
          fp4 ? i / 16 : (i / width / 128) * static_cast<size_t>(s.shape[1]) + i % width / 128;
      const auto scale_byte = static_cast<uint8_t>(s.data[at]);
      scales.insert(scale_byte);
      const double scale = Ue8m0ToFloat(scale_byte);
      if (fp4) {
        values.push_back(E2m1ToFloat(code) * scale);
        values.push_back(E2m1ToFloat(static_cast<uint8_t>(code >> 4)) * scale);
      } else {
        values.push_back(E4m3ToFloat(code) * scale);
      }
    }
    EXPECT_GT(scales.size(), 1u) << name;
    return MomentsOf(values);
  };
  // tiny: hidden 256, q_lora 128, MoE width 128, routed_scaling_factor 1.5. The few fp8 blocks of
  // a tiny matrix have few scales, hence the wide bound; fp4 has thousands.
  const double wq_b = matrix("layers.1.attn.wq_b", false).rms * std::sqrt(128.0);
  EXPECT_GT(wq_b, 0.6);
  EXPECT_LT(wq_b, 1.7);
  const Moments w1 = matrix("layers.1.ffn.experts.0.w1", true);
  EXPECT_NEAR(w1.rms * std::sqrt(256.0), 1.6, 0.08);
  EXPECT_LT(std::fabs(w1.mean), 0.02 * w1.rms);
  EXPECT_NEAR(matrix("layers.1.ffn.experts.0.w2", true).rms * std::sqrt(128.0), 0.25 / 1.5, 0.01);
}

TEST(SyntheticTensor, NumbersAreNormalAndTablesHoldDistinctExperts) {
  const SynthPlan plan = Plan(Preset("tiny"));
  const ExpectedTensor embed = {"embed.weight", DType::kBF16, {2560, 256}};
  std::vector<uint16_t> bits(2560 * 256);
  SyntheticTensor(plan.config, embed, 1).Fill(0, std::as_writable_bytes(std::span(bits)));
  std::vector<double> values;
  for (const uint16_t b : bits) values.push_back(Bf16ToFloat(b));
  const Moments m = MomentsOf(values);
  EXPECT_NEAR(m.rms, 1.0, 0.01);  // 655,360 draws: 0.001, and the cut tail
  EXPECT_NEAR(m.mean, 0.0, 0.01);
  EXPECT_GT(m.max, 3.0);

  const ExpectedTensor table = {"layers.0.ffn.gate.tid2eid", DType::kI64, {2560, 2}};
  std::vector<int64_t> ids(2560 * 2);
  SyntheticTensor(plan.config, table, 1).Fill(0, std::as_writable_bytes(std::span(ids)));
  std::vector<int> uses(8);
  for (size_t i = 0; i < ids.size(); i += 2) {
    ASSERT_NE(ids[i], ids[i + 1]);
    for (const int64_t id : {ids[i], ids[i + 1]}) {
      ASSERT_TRUE(id >= 0 && id < 8);
      ++uses[static_cast<size_t>(id)];
    }
  }
  for (const int n : uses) EXPECT_NEAR(n, 640, 100);  // 4 standard deviations
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

TEST(SynthDialect, AliasNamesHoldTheSameTensors) {
  TempDirectory plain, aliased;
  SynthOptions options;
  ASSERT_TRUE(Write(Preset("tiny"), plain.path(), options).ok());
  options.dialect.alias_names = true;
  options.dialect.transformers_config = true;
  ASSERT_TRUE(Write(Preset("tiny"), aliased.path(), options).ok());
  const Json index = Json::parse(ReadText(aliased.path() / "model.safetensors.index.json"));
  const Json& map = index["weight_map"];
  EXPECT_TRUE(map.contains("model.layers.1.self_attn.wq_a.weight_scale_inv"));
  EXPECT_TRUE(map.contains("model.layers.1.mlp.gate.e_score_correction_bias"));
  EXPECT_FALSE(map.contains("layers.1.attn.wq_a.scale"));
  EXPECT_EQ(ReadTensors(aliased.path()), ReadTensors(plain.path()));
  const Json config = Json::parse(ReadText(aliased.path() / "config.json"));
  EXPECT_FALSE(config.contains("compress_ratios"));
  EXPECT_EQ(config["layer_types"][2], "heavily_compressed_attention");
}

TEST(SynthDialect, AliasesAreTheInverseOfNativeNames) {
  SynthOptions options;
  options.dialect.alias_names = true;
  for (const SynthShard& shard : Plan(Preset("tiny"), options).shards) {
    for (const ExpectedTensor& tensor : shard.tensors) {
      EXPECT_EQ(NativeTensorName(NameInDialect(tensor.name, options.dialect)), tensor.name);
    }
  }
}

TEST(SynthDialect, TransformersConfigsDescribeTheSameModel) {
  SynthDialect dialect;
  dialect.transformers_config = true;
  for (const char* preset : {"flash", "pro", "mid", "nano", "tiny"}) {
    auto text = ConfigInDialect(Preset(preset), preset, dialect);
    ASSERT_TRUE(text.ok()) << text.status().ToString();
    auto want = ParseModelConfig(Preset(preset), preset);
    auto got = ParseModelConfig(*text, preset);
    ASSERT_TRUE(got.ok()) << got.status().ToString();
    EXPECT_EQ(got->compress_ratios, want->compress_ratios);
    EXPECT_EQ(got->mtp_compress_ratios, want->mtp_compress_ratios);
    EXPECT_EQ(got->num_hash_layers, want->num_hash_layers);
    EXPECT_EQ(got->rope_dim, want->rope_dim);
    EXPECT_EQ(got->rope_theta, want->rope_theta);
    EXPECT_EQ(got->compress_rope_theta, want->compress_rope_theta);
    EXPECT_EQ(got->rope_scaling.factor, want->rope_scaling.factor);
    EXPECT_EQ(got->rope_scaling.original_max_position, want->rope_scaling.original_max_position);
  }
}

TEST(SynthDialect, DSparkAndMissingMtpOpenWithOneNote) {
  for (const bool dspark : {true, false}) {
    TempDirectory directory;
    SynthOptions options;
    (dspark ? options.dialect.dspark : options.dialect.omit_mtp) = true;
    ASSERT_TRUE(Write(Preset("tiny"), directory.path(), options).ok());
    auto opened = Checkpoint::Open(directory.path());
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    ASSERT_THAT(opened->notes(), SizeIs(1));
    EXPECT_THAT(opened->notes()[0], HasSubstr(dspark ? "DSpark" : "no mtp tensors"));
    EXPECT_THAT(opened->config().mtp_compress_ratios, IsEmpty());
    EXPECT_EQ(opened->Find("mtp.0.norm.weight"), nullptr);
  }
}

TEST(ChangeGeometry, CutsAndContinuesTheSchedule) {
  const auto ratios = [](const char* preset, const GeometryChanges& changes) {
    auto text = ChangeGeometry(Preset(preset), preset, changes);
    EXPECT_TRUE(text.ok()) << text.status().ToString();
    auto config = ParseModelConfig(*text, preset);
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    return config->compress_ratios;
  };
  GeometryChanges changes;
  changes.layers = 3;
  EXPECT_THAT(ratios("flash", changes), ElementsAre(0, 0, 4));
  changes.layers = 6;
  EXPECT_THAT(ratios("tiny", changes), ElementsAre(0, 4, 128, 4, 128, 4));
  changes.layers = 1;  // also fewer than the preset's hash layers
  EXPECT_THAT(ratios("flash", changes), ElementsAre(0));
  changes.layers.reset();
  changes.ratios = {4, 128};
  EXPECT_THAT(ratios("nano", changes), ElementsAre(4, 128));
}

TEST(ChangeGeometry, EveryFieldReachesTheConfig) {
  for (const GeometryField& field : GeometryFields()) {
    GeometryChanges changes;
    changes.*field.member = 17;
    auto text = ChangeGeometry(Preset("flash"), "flash", changes);
    ASSERT_TRUE(text.ok()) << text.status().ToString();
    EXPECT_EQ(Json::parse(*text)[field.json], 17) << field.option;
  }
}

TEST(ChangeGeometry, MtpComesAndGoes) {
  for (const char* preset : {"tiny", "mid"}) {
    for (const bool mtp : {true, false}) {
      GeometryChanges changes;
      changes.mtp = mtp;
      auto text = ChangeGeometry(Preset(preset), preset, changes);
      ASSERT_TRUE(text.ok());
      EXPECT_THAT(Plan(*text).config.mtp_compress_ratios, SizeIs(mtp ? 1 : 0));
    }
  }
}

TEST(ChangeGeometry, NamesWhatIsWrong) {
  GeometryChanges changes;
  changes.ratios = {0, 4};
  changes.layers = 3;
  EXPECT_THAT(ChangeGeometry(Preset("tiny"), "x", changes).status().message(),
              HasSubstr("2 ratios for 3 layers"));
  EXPECT_FALSE(ChangeGeometry("[1]", "x", {}).ok());
  EXPECT_FALSE(ChangeGeometry("{}", "x", {}).ok());
  EXPECT_FALSE(ChangeGeometry(std::string(100'000, '['), "x", {}).ok());

  const std::vector<std::pair<GeometryChanges, const char*>> bad = [] {
    std::vector<std::pair<GeometryChanges, const char*>> list(5);
    list[0] = {{}, "hidden_size"};
    list[0].first.hidden = 200;
    list[1] = {{}, "num_experts_per_tok"};
    list[1].first.experts = 1;
    list[2] = {{}, "num_hidden_layers"};
    list[2].first.layers = 0;
    list[3] = {{}, "compress_ratios[1]"};
    list[3].first.ratios = {0, 5};
    list[4] = {{}, "num_hidden_layers"};
    list[4].first.layers = 2'000'000'000;
    return list;
  }();
  for (const auto& [change, named] : bad) {
    auto text = ChangeGeometry(Preset("tiny"), "tiny", change);
    ASSERT_TRUE(text.ok()) << text.status().ToString();
    const auto plan = PlanSyntheticCheckpoint(*text, "tiny", {});
    EXPECT_THAT(plan.status().message(), HasSubstr(named));
  }
  GeometryChanges many;
  many.layers = 1024;
  many.experts = 4096;
  auto text = ChangeGeometry(Preset("tiny"), "tiny", many);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(PlanSyntheticCheckpoint(*text, "tiny", {}).status().message(),
              HasSubstr("25165824 tensors"));
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
}

TEST(Synth, ADiskTooSmallIsToldBeforeWriting) {
  GeometryChanges changes;  // hundreds of terabytes
  changes.layers = 1024;
  changes.hidden = 1 << 17;
  changes.moe_intermediate = 1 << 17;
  auto config = ChangeGeometry(Preset("tiny"), "tiny", changes);
  ASSERT_TRUE(config.ok());
  TempDirectory directory;
  const Status status = Write(*config, directory.path());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("are free, the checkpoint needs"));
  EXPECT_THAT(FileNames(directory.path()), IsEmpty());
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
