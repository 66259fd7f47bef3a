#include "checkpoint/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json TinyConfig() { return Json::parse(ReadText(TinyA() / "config.json")); }
Json PresetJson(const char* name) {
  return Json::parse(ReadText(SourceDir() / "models/presets" / name));
}

ModelConfig Parsed(const Json& json) {
  auto config = ParseModelConfig(json.dump(), "some/config.json");
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? *config : ModelConfig{};
}
Status Failure(const Json& json) {
  auto config = ParseModelConfig(json.dump(), "some/config.json");
  return config.ok() ? OkStatus() : config.status();
}

TEST(ModelConfig, FlashPreset) {
  const ModelConfig c = Parsed(PresetJson("flash.json"));
  EXPECT_EQ(c.vocab_size, 129280);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.num_layers, 43);
  EXPECT_EQ(c.num_heads, 64);
  EXPECT_EQ(c.head_dim, 512);
  EXPECT_EQ(c.rope_dim, 64);
  EXPECT_EQ(c.nope_dim(), 448);
  EXPECT_EQ(c.q_lora_rank, 1024);
  EXPECT_EQ(c.o_groups, 8);
  EXPECT_EQ(c.o_lora_rank, 1024);
  EXPECT_EQ(c.window, 128);
  EXPECT_EQ(c.num_experts, 256);
  EXPECT_EQ(c.num_experts_per_token, 6);
  EXPECT_EQ(c.moe_intermediate_size, 2048);
  EXPECT_EQ(c.num_hash_layers, 3);
  EXPECT_EQ(c.scoring, ScoringFunc::kSqrtSoftplus);
  EXPECT_EQ(c.routed_scaling_factor, 1.5);
  EXPECT_EQ(c.swiglu_limit, 10.0);
  EXPECT_EQ(c.index_num_heads, 64);
  EXPECT_EQ(c.index_head_dim, 128);
  EXPECT_EQ(c.index_topk, 512);
  EXPECT_EQ(c.hc_mult, 4);
  EXPECT_EQ(c.hc_sinkhorn_iters, 20);
  EXPECT_EQ(c.hc_eps, 1e-6);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.compress_rope_theta, 160000.0);
  EXPECT_EQ(c.rope_scaling.factor, 16.0);
  EXPECT_EQ(c.rope_scaling.original_max_position, 65536);
  EXPECT_EQ(c.rope_scaling.beta_fast, 32.0);
  EXPECT_EQ(c.rope_scaling.beta_slow, 1.0);
  EXPECT_EQ(c.max_position_embeddings, 1048576);
  EXPECT_THAT(c.mtp_compress_ratios, ElementsAre(0));
  EXPECT_FALSE(c.has_dspark);
  EXPECT_EQ(c.bos_token_id, 0);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1));
  ASSERT_EQ(c.compress_ratios.size(), 43u);
  for (int layer = 0; layer < 43; ++layer) {
    const int ratio = layer < 2 ? 0 : layer % 2 == 0 ? 4 : 128;
    EXPECT_EQ(c.compress_ratios[static_cast<size_t>(layer)], ratio) << layer;
  }
}

TEST(ModelConfig, ProPreset) {
  const ModelConfig c = Parsed(PresetJson("pro.json"));
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.num_layers, 61);
  EXPECT_EQ(c.index_topk, 1024);
  EXPECT_EQ(std::count(c.compress_ratios.begin(), c.compress_ratios.end(), 4), 30);
  EXPECT_EQ(std::count(c.compress_ratios.begin(), c.compress_ratios.end(), 128), 31);
  EXPECT_THAT(c.mtp_compress_ratios, ElementsAre(0));
}

// The same geometry as `json` (a published file) in the words of transformers.
Json InTransformersSpelling(Json json) {
  const char* kinds[] = {"sliding_attention", "compressed_sparse_attention",
                         "heavily_compressed_attention"};
  Json layer_types = Json::array();
  Json mlp_types = Json::array();
  for (int layer = 0; layer < json["num_hidden_layers"]; ++layer) {
    const int ratio = json["compress_ratios"][static_cast<size_t>(layer)];
    layer_types.push_back(kinds[ratio == 0 ? 0 : ratio == 4 ? 1 : 2]);
    mlp_types.push_back(layer < json["num_hash_layers"] ? "hash_moe" : "moe");
  }
  json["layer_types"] = layer_types;
  json["mlp_layer_types"] = mlp_types;
  json["compress_rates"] = {{"compressed_sparse_attention", 4},
                            {"heavily_compressed_attention", 128}};
  const double factor = json["qk_rope_head_dim"].get<double>() / json["head_dim"].get<double>();
  json["partial_rotary_factor"] = factor;
  Json compress = json["rope_scaling"];
  compress["rope_type"] = compress["type"];
  compress.erase("type");
  compress["rope_theta"] = json["compress_rope_theta"];
  compress["partial_rotary_factor"] = factor;
  compress["attention_factor"] = 1.0;
  const Json main = {{"rope_type", "default"},
                     {"rope_theta", json["rope_theta"]},
                     {"partial_rotary_factor", factor}};
  json["rope_parameters"] = {{"main", main}, {"compress", compress}};
  for (const char* old : {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling",
                          "rope_theta", "compress_rope_theta"}) {
    json.erase(old);
  }
  return json;
}

TEST(ModelConfig, TransformersSpellingMeansTheSame) {
  for (const char* name : {"flash.json", "pro.json"}) {
    const ModelConfig published = Parsed(PresetJson(name));
    const ModelConfig saved = Parsed(InTransformersSpelling(PresetJson(name)));
    EXPECT_EQ(saved.compress_ratios, published.compress_ratios);
    EXPECT_EQ(saved.mtp_compress_ratios, published.mtp_compress_ratios);
    EXPECT_EQ(saved.num_hash_layers, published.num_hash_layers);
    EXPECT_EQ(saved.rope_dim, published.rope_dim);
    EXPECT_EQ(saved.rope_theta, published.rope_theta);
    EXPECT_EQ(saved.compress_rope_theta, published.compress_rope_theta);
    EXPECT_EQ(saved.rope_scaling.factor, published.rope_scaling.factor);
    EXPECT_EQ(saved.rope_scaling.original_max_position,
              published.rope_scaling.original_max_position);
    EXPECT_EQ(saved.rope_scaling.beta_fast, published.rope_scaling.beta_fast);
  }
}

TEST(ModelConfig, BothSpellingsAtOnceMustAgree) {
  Json json = TinyConfig();
  const Json saved = InTransformersSpelling(json);
  for (const char* name :
       {"layer_types", "mlp_layer_types", "rope_parameters", "partial_rotary_factor"}) {
    json[name] = saved[name];
  }
  Parsed(json);
  json["layer_types"][2] = "sliding_attention";
  json["mlp_layer_types"][1] = "moe";
  json["rope_parameters"]["main"]["rope_theta"] = 5000;
  json["partial_rotary_factor"] = 0.25;
  json["rope_parameters"]["main"]["partial_rotary_factor"] = 0.25;
  json["rope_parameters"]["compress"]["partial_rotary_factor"] = 0.25;
  EXPECT_THAT(
      Failure(json).message(),
      AllOf(HasSubstr("layer_types: disagrees"), HasSubstr("mlp_layer_types: disagrees"),
            HasSubstr("rope_theta: given twice"), HasSubstr("qk_rope_head_dim: given twice")));
}

TEST(ModelConfig, RopeTypeMayStandForType) {
  Json json = TinyConfig();
  json["rope_scaling"].erase("type");
  json["rope_scaling"]["rope_type"] = "yarn";
  EXPECT_EQ(Parsed(json).rope_scaling.factor, 4.0);
}

TEST(ModelConfig, FlatRopeParametersAreRopeScaling) {
  Json json = TinyConfig();
  json["rope_parameters"] = json["rope_scaling"];
  json.erase("rope_scaling");
  EXPECT_EQ(Parsed(json).rope_scaling.original_max_position, 256);
}

TEST(ModelConfig, NoRopeScalingMeansNone) {
  Json json = TinyConfig();
  json["rope_scaling"] = nullptr;
  const ModelConfig c = Parsed(json);
  EXPECT_EQ(c.rope_scaling.factor, 1.0);
  EXPECT_EQ(c.rope_scaling.original_max_position, 0);
}

TEST(ModelConfig, DefaultsOfTheOfficialCode) {
  Json json = TinyConfig();
  for (const char* name : {"hc_mult", "hc_sinkhorn_iters", "hc_eps", "rms_norm_eps", "rope_theta",
                           "scoring_func", "n_shared_experts", "num_key_value_heads",
                           "bos_token_id", "eos_token_id", "expert_dtype"}) {
    ASSERT_EQ(json.erase(name), 1u) << name;
  }
  const ModelConfig c = Parsed(json);
  EXPECT_EQ(c.hc_mult, 4);
  EXPECT_EQ(c.hc_sinkhorn_iters, 20);
  EXPECT_EQ(c.hc_eps, 1e-6);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(1));
}

TEST(ModelConfig, DSparkEntriesAreNoMtpBlocks) {
  Json json = PresetJson("flash.json");
  json["dspark_block_size"] = 5;
  json["dspark_noise_token_id"] = 128799;
  json["dspark_target_layer_ids"] = {40, 41, 42};
  json["dspark_markov_rank"] = 256;
  json["compress_ratios"].push_back(0);
  json["compress_ratios"].push_back(0);
  ASSERT_EQ(json["compress_ratios"].size(), 46u);
  const ModelConfig c = Parsed(json);
  EXPECT_TRUE(c.has_dspark);
  EXPECT_EQ(c.compress_ratios.size(), 43u);
  EXPECT_TRUE(c.mtp_compress_ratios.empty());
  json.erase("dspark_block_size");
  EXPECT_THAT(Failure(json).message(), HasSubstr("compress_ratios: 46 entries"));
}

TEST(ModelConfig, MtpCountAndRatios) {
  Json json = TinyConfig();
  json["num_nextn_predict_layers"] = 0;
  EXPECT_TRUE(Parsed(json).mtp_compress_ratios.empty());  // the block's entry may stay behind
  json["compress_ratios"].push_back(0);
  EXPECT_THAT(Failure(json).message(), HasSubstr("compress_ratios"));
  json["compress_ratios"].erase(7);
  json["compress_ratios"].erase(6);
  EXPECT_TRUE(Parsed(json).mtp_compress_ratios.empty());
  json["num_nextn_predict_layers"] = 2;  // ratios of MTP blocks may be left out; they are 0
  EXPECT_THAT(Parsed(json).mtp_compress_ratios, ElementsAre(0, 0));
}

TEST(ModelConfig, SeveralEndTokens) {
  Json json = TinyConfig();
  json["eos_token_id"] = {1, 7};
  EXPECT_THAT(Parsed(json).eos_token_ids, ElementsAre(1, 7));
}

TEST(ModelConfig, OtherModelsAreRefusedByName) {
  const std::pair<std::function<void(Json&)>, const char*> cases[] = {
      {[](Json& j) { j["model_type"] = "deepseek_v41"; }, "DeepSeek-V4.1"},
      {[](Json& j) { j["model_type"] = "llama"; }, "\"llama\""},
      {[](Json& j) { j["model_type"] = 4; }, "model_type"},
      {[](Json& j) { j["expert_dtype"] = "fp8"; }, "-Base"},
      {[](Json& j) { j["expert_dtype"] = 8; }, "expert_dtype"},
      {[](Json& j) {
         j["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
       },
       "NVFP4"},
      {[](Json& j) { j["quantization_config"]["quant_method"] = "awq"; }, "\"awq\""},
      {[](Json& j) { j.erase("quantization_config"); }, "unquantised"},
  };
  for (const auto& [change, expected] : cases) {
    Json json = TinyConfig();
    change(json);
    const Status status = Failure(json);
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented) << expected;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("some/config.json"), HasSubstr(expected)));
    // Says what to use instead.
    EXPECT_THAT(status.message(),
                ::testing::AnyOf(HasSubstr("DeepSeek-V4-Flash"), HasSubstr("official")));
  }
}

// Every line is one field, a value that it must not have, and text that the message must hold. The
// file is otherwise valid, so exactly this problem is reported.
struct BadField {
  const char* pointer;  // JSON pointer
  const char* value;    // JSON; "-" removes the field
  const char* expected;
};
void PrintTo(const BadField& bad, std::ostream* out) { *out << bad.pointer << " = " << bad.value; }

class BadConfig : public ::testing::TestWithParam<BadField> {};

TEST_P(BadConfig, IsRefusedWithTheNameOfTheField) {
  Json json = TinyConfig();
  const Json::json_pointer pointer(GetParam().pointer);
  if (std::string_view(GetParam().value) == "-") {
    json.at(pointer.parent_pointer()).erase(pointer.back());
  } else {
    json[pointer] = Json::parse(GetParam().value);
  }
  const Status status = Failure(json);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("some/config.json: "), HasSubstr(GetParam().expected),
                    ::testing::Not(HasSubstr("problems"))));
}

constexpr BadField kBadFields[] = {
    {"/model_type", "-", "model_type: missing"},
    {"/vocab_size", "-", "vocab_size: missing"},
    {"/vocab_size", "0", "vocab_size"},
    {"/vocab_size", "-512", "vocab_size"},
    {"/vocab_size", "1e99", "vocab_size"},
    {"/vocab_size", "512.0", "vocab_size"},
    {"/vocab_size", "\"512\"", "vocab_size"},
    {"/vocab_size", "true", "vocab_size"},
    {"/vocab_size", "[512]", "vocab_size"},
    {"/vocab_size", "{\"a\": 1}", "vocab_size"},
    {"/vocab_size", "4294967808", "vocab_size"},
    {"/vocab_size", "18446744073709551615", "vocab_size"},
    {"/vocab_size", "-9223372036854775808", "vocab_size"},
    {"/hidden_size", "192", "hidden_size: 192 is not a multiple of 128"},
    {"/q_lora_rank", "64", "q_lora_rank: 64"},
    {"/moe_intermediate_size", "160", "moe_intermediate_size: 160"},
    {"/o_lora_rank", "96", "o_lora_rank: 96"},
    {"/num_hidden_layers", "null", "num_hidden_layers: missing"},
    {"/num_hidden_layers", "1000000", "num_hidden_layers"},
    {"/num_hidden_layers", "8", "compress_ratios: 7 entries"},
    {"/num_attention_heads", "5", "num_attention_heads: 5 is not a multiple of 2"},
    {"/o_groups", "0", "o_groups"},
    {"/o_groups", "3", "num_attention_heads"},
    {"/head_dim", "160", "head_dim: 96"},
    {"/head_dim", "64", "below head_dim"},
    {"/qk_rope_head_dim", "-", "qk_rope_head_dim: missing"},
    {"/qk_rope_head_dim", "0", "qk_rope_head_dim"},
    {"/index_head_dim", "96", "index_head_dim: 96 is not a power of two"},
    {"/index_head_dim", "32", "below qk_rope_head_dim"},
    {"/index_n_heads", "-1", "index_n_heads"},
    {"/index_topk", "0", "index_topk"},
    {"/sliding_window", "0", "sliding_window"},
    {"/n_routed_experts", "5000000", "n_routed_experts"},
    {"/num_experts_per_tok", "9", "num_experts_per_tok: 9 of 8"},
    {"/num_key_value_heads", "2", "num_key_value_heads"},
    {"/n_shared_experts", "2", "n_shared_experts"},
    {"/num_hash_layers", "7", "num_hash_layers"},
    {"/num_hash_layers", "-", "num_hash_layers: missing"},
    {"/hc_mult", "0", "hc_mult"},
    {"/hc_mult", "1000", "hc_mult"},
    {"/hc_sinkhorn_iters", "0", "hc_sinkhorn_iters"},
    {"/hc_eps", "-1e-6", "hc_eps"},
    {"/rms_norm_eps", "\"x\"", "rms_norm_eps"},
    {"/rope_theta", "0", "rope_theta"},
    {"/rope_theta", "1", "rope_theta"},
    {"/compress_rope_theta", "-", "compress_rope_theta: missing"},
    {"/compress_rope_theta", "1e300", "compress_rope_theta"},
    {"/rope_scaling", "[]", "rope_scaling: not an object"},
    {"/rope_scaling/type", "\"linear\"", "\"linear\""},
    {"/rope_scaling/type", "1", "rope_scaling.rope_type"},
    {"/rope_scaling/factor", "0.5", "rope_scaling.factor"},
    {"/rope_scaling/factor", "-", "rope_scaling.factor: missing"},
    {"/rope_scaling/beta_fast", "1", "rope_scaling.beta_fast"},
    {"/rope_scaling/original_max_position_embeddings", "0", "original_max_position_embeddings"},
    {"/rope_parameters", "{\"main\": 3}", "rope_parameters.main: not an object"},
    {"/rope_parameters", "{\"main\": {\"rope_type\": \"yarn\"}}", "rope_parameters.main.rope_type"},
    {"/partial_rotary_factor", "1.5", "partial_rotary_factor"},
    {"/compress_ratios", "-", "compress_ratios: missing"},
    {"/compress_ratios", "4", "compress_ratios: not an array"},
    {"/compress_ratios", "[]", "compress_ratios: 0 entries"},
    {"/compress_ratios/3", "2", "compress_ratios[3]"},
    {"/compress_ratios/3", "\"4\"", "compress_ratios[3]"},
    {"/compress_ratios/6", "4", "MTP blocks must have ratio 0"},
    {"/layer_types", "[\"full_attention\"]", "layer_types"},
    {"/mlp_layer_types", "[\"moe\",\"hash_moe\",\"moe\",\"moe\",\"moe\",\"moe\"]",
     "hash_moe layers must come first"},
    {"/mlp_layer_types", "[1,2,3,4,5,6]", "mlp_layer_types[0]"},
    {"/compress_rates", "{\"compressed_sparse_attention\": 8}", "compress_rates."},
    {"/num_nextn_predict_layers", "-1", "num_nextn_predict_layers"},
    {"/scoring_func", "\"relu\"", "scoring_func"},
    {"/hidden_act", "\"gelu\"", "hidden_act"},
    {"/tie_word_embeddings", "true", "tie_word_embeddings"},
    {"/attention_bias", "true", "attention_bias"},
    {"/norm_topk_prob", "false", "norm_topk_prob"},
    {"/bos_token_id", "512", "bos_token_id"},
    {"/eos_token_id", "[1, 600]", "eos_token_id"},
    {"/eos_token_id", "\"</s>\"", "eos_token_id"},
    {"/quantization_config", "[]", "quantization_config: not an object"},
    {"/quantization_config/quant_method", "-", "quantization_config.quant_method"},
    {"/quantization_config/fmt", "\"e5m2\"", "quantization_config.fmt"},
    {"/quantization_config/scale_fmt", "\"float\"", "quantization_config.scale_fmt"},
    {"/quantization_config/weight_block_size", "[32, 32]", "weight_block_size"},
    {"/quantization_config/activation_scheme", "\"static\"", "activation_scheme"}};
INSTANTIATE_TEST_SUITE_P(Fields, BadConfig, ::testing::ValuesIn(kBadFields));

TEST(ModelConfig, ListsAllProblemsAtOnce) {
  Json json = TinyConfig();
  json["vocab_size"] = -1;
  json.erase("index_topk");
  json["scoring_func"] = "relu";
  EXPECT_THAT(Failure(json).message(), AllOf(HasSubstr("3 problems"), HasSubstr("vocab_size"),
                                             HasSubstr("index_topk"), HasSubstr("scoring_func")));
}

TEST(ModelConfig, ListIsCutAtTwentyLines) {
  Json json = TinyConfig();
  json["compress_ratios"] = Json::array();
  for (int i = 0; i < 7; ++i) json["compress_ratios"].push_back(1);
  for (auto& [name, value] : json.items()) {
    if (value.is_number()) value = -1;
  }
  const std::string message = Failure(json).message();
  EXPECT_THAT(message, HasSubstr(" more"));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 21);
}

TEST(ModelConfig, MalformedTextIsRefused) {
  const std::string valid = TinyConfig().dump();
  const std::string cases[] = {
      "",
      " ",
      "null",
      "[]",
      "3",
      "{",
      valid.substr(0, valid.size() - 1),
      valid + "}",
      "{\"model_type\": \"deepseek_v4\xff\"}",
      std::string(1 << 20, '['),
      std::string(5 << 20, ' '),
      "{\"a\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
      std::string("\0{}", 3),
      valid + std::string("\0}", 2)};
  for (const std::string& text : cases) {
    auto config = ParseModelConfig(text, "some/config.json");
    ASSERT_FALSE(config.ok()) << text.substr(0, 80);
    EXPECT_THAT(config.status().message(), HasSubstr("some/config.json: "));
  }
}

TEST(ModelConfig, EveryCutOfTheFileIsRefused) {
  const std::string valid = TinyConfig().dump();
  for (size_t size = 0; size < valid.size(); size += 13) {
    EXPECT_FALSE(ParseModelConfig(std::string_view(valid).substr(0, size), "c").ok()) << size;
  }
}

}  // namespace
}  // namespace fathom
