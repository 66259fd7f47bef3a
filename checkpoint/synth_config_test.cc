#include "checkpoint/synth_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/names.h"
#include "checkpoint/synth_test_data.h"

namespace fathom {
namespace {

using namespace synth_test;  // NOLINT(google-build-using-namespace): these tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

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

}  // namespace
}  // namespace fathom
