// Every way to write a checkpoint down gives the same logits, bit for bit: other tensor names, the
// config as transformers saves it, shards, a drafter that is skipped, an MTP block that is missing.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "engine/local_engine.h"
#include "engine/sequence_runner.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// A checkpoint before it is written; tensors point into the plain one.
struct Draft {
  Json config;
  std::vector<StoredTensor> tensors;
  int num_shards = 1;
};

void Replace(std::string& text, const std::string& from, const std::string& to) {
  if (const size_t at = text.find(from); at != std::string::npos) text.replace(at, from.size(), to);
}

void UseAliases(Draft& draft) {
  for (StoredTensor& tensor : draft.tensors) {
    tensor.name = "model." + tensor.name;
    Replace(tensor.name, ".attn.", ".self_attn.");
    Replace(tensor.name, ".ffn.", ".mlp.");
    Replace(tensor.name, ".gate.bias", ".gate.e_score_correction_bias");
    if (tensor.name.ends_with(".scale")) Replace(tensor.name, ".scale", ".weight_scale_inv");
  }
}

void UseTransformersConfig(Draft& draft) {
  Json& c = draft.config;
  for (int layer = 0; layer < c["num_hidden_layers"]; ++layer) {
    const int ratio = c["compress_ratios"][static_cast<size_t>(layer)];
    c["layer_types"].push_back(ratio == 0   ? "sliding_attention"
                               : ratio == 4 ? "compressed_sparse_attention"
                                            : "heavily_compressed_attention");
    c["mlp_layer_types"].push_back(layer < c["num_hash_layers"] ? "hash_moe" : "moe");
  }
  c["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  c["partial_rotary_factor"] = c["qk_rope_head_dim"].get<double>() / c["head_dim"].get<double>();
  Json compress = c["rope_scaling"];
  compress["rope_type"] = compress["type"];
  compress.erase("type");
  compress["rope_theta"] = c["compress_rope_theta"];
  c["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", c["rope_theta"]}}},
                          {"compress", compress}};
  for (const char* name : {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling",
                           "rope_theta", "compress_rope_theta"}) {
    c.erase(name);
  }
}

void UseShards(Draft& draft) { draft.num_shards = 3; }

void DropMtp(Draft& draft) {
  std::erase_if(draft.tensors, [](const auto& t) { return t.name.starts_with("mtp."); });
}

// Stages of a drafter in place of the MTP block, as in the 0731 release.
void UseDSpark(Draft& draft) {
  draft.config["dspark_block_size"] = 5;
  draft.config["compress_ratios"] = {0, 0, 4, 128, 4, 128, 0, 0, 0};
  DropMtp(draft);
  const StoredTensor some = draft.tensors.front();
  for (const char* name :
       {"mtp.0.main_proj.weight", "mtp.1.attn.wq_a.weight", "mtp.2.markov_head.markov_w1.weight"}) {
    draft.tensors.push_back(some);
    draft.tensors.back().name = name;
  }
}

void EverythingAtOnce(Draft& draft) {
  UseTransformersConfig(draft);
  UseAliases(draft);
  UseShards(draft);
}

struct Rewriting {
  const char* name;
  void (*apply)(Draft&);
};
void PrintTo(const Rewriting& rewriting, std::ostream* out) { *out << rewriting.name; }

class Dialect : public ::testing::TestWithParam<Rewriting> {
 protected:
  static fs::path Plain() { return ProjectPath("tests/data/tiny-a/checkpoint"); }

  static void Write(const Draft& draft, const fs::path& directory) {
    std::ofstream(directory / "config.json") << draft.config.dump();
    if (draft.num_shards == 1) {
      const Status status = WriteSafetensors(directory / "model.safetensors", draft.tensors);
      ASSERT_TRUE(status.ok()) << status.ToString();
      return;
    }
    Json index = {{"weight_map", Json::object()}};
    std::vector<std::vector<StoredTensor>> shards(static_cast<size_t>(draft.num_shards));
    const auto file = [&](size_t shard) {
      return "model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors";
    };
    for (size_t t = 0; t < draft.tensors.size(); ++t) {
      shards[t % shards.size()].push_back(draft.tensors[t]);
      index["weight_map"][draft.tensors[t].name] = file(t % shards.size());
    }
    for (size_t s = 0; s < shards.size(); ++s) {
      const Status status = WriteSafetensors(directory / file(s), shards[s]);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    std::ofstream(directory / "model.safetensors.index.json") << index.dump();
  }

  // Logits of every position of a prompt that fills windows and both kinds of compressed entries.
  static Result<std::vector<float>> Logits(const fs::path& directory) {
    constexpr size_t kTokens = 140;
    std::vector<TokenId> ids;
    for (size_t i = 0; i < kTokens; ++i) ids.push_back(static_cast<TokenId>(i * 37 % 509));
    FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                            MakeBackend("cpu", Numerics::kOfficial, 1));
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                            Model::Create(checkpoint, *backend, kTokens, kTokens));
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceRunner> runner,
                            SequenceRunner::Create(*model, Numerics::kOfficial, kTokens));
    std::vector<float> logits(kTokens * static_cast<size_t>(checkpoint.config().vocab_size));
    FATHOM_RETURN_IF_ERROR(runner->Step(ids, SequenceRunner::Logits::kAll, logits));
    return logits;
  }
};

TEST_P(Dialect, GivesTheLogitsOfThePlainSpelling) {
  auto file = SafetensorsFile::Open(Plain() / "model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  std::ifstream config(Plain() / "config.json");
  Draft draft{Json::parse(config), file->tensors()};
  GetParam().apply(draft);
  const fs::path directory = fs::path(::testing::TempDir()) / "fathom_dialect" / GetParam().name;
  fs::remove_all(directory);
  fs::create_directories(directory);
  Write(draft, directory);

  auto plain = Logits(Plain());
  ASSERT_TRUE(plain.ok()) << plain.status().ToString();
  auto other = Logits(directory);
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_TRUE(std::any_of(plain->begin(), plain->end(), [](float x) { return x != 0.0f; }));
  EXPECT_EQ(*other, *plain);
  fs::remove_all(directory);
}

constexpr Rewriting kRewritings[] = {
    {"Aliases", UseAliases}, {"TransformersConfig", UseTransformersConfig},
    {"Shards", UseShards},   {"NoMtp", DropMtp},
    {"DSpark", UseDSpark},   {"EverythingAtOnce", EverythingAtOnce}};
INSTANTIATE_TEST_SUITE_P(Spellings, Dialect, ::testing::ValuesIn(kRewritings),
                         [](const auto& dialect) { return std::string(dialect.param.name); });

}  // namespace
}  // namespace fathom
