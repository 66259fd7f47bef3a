// Engines on the example plug-in: the reference's bits, in the host's memory and in a memory that
// is only copied to; refusals; and what becomes of requests whose operations fail.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "engine/plugin_factory.h"
#include "tests/invariance/harness.h"
#include "tests/plugin/example_plugin.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LocalEngineOptions WithPlugin(const std::string& path) {
  LocalEngineOptions options;
  options.backend = "plugin";
  options.backend_plugin = path;
  return options;
}

std::string Refusal(const LocalEngineOptions& options) {
  const auto local = LocalModel::Open(options);
  EXPECT_FALSE(local.ok());
  return local.ok() ? "" : local.status().message();
}

TEST(PluginOptions, OfTheCpuAreRefusedByName) {
  const auto refused = [](const std::function<void(LocalEngineOptions&)>& change) {
    LocalEngineOptions options = WithPlugin(ExamplePlugin());
    change(options);
    EXPECT_EQ(CheckBackendOptions(options).code(), StatusCode::kInvalidArgument);
    return Refusal(options);
  };
  EXPECT_THAT(refused([](auto& o) { o.num_threads = 2; }), HasSubstr("--threads"));
  EXPECT_THAT(refused([](auto& o) { o.numa = NumaMode::kOff; }), HasSubstr("--numa"));
  EXPECT_THAT(refused([](auto& o) { o.cpu.int8_activations = true; }),
              HasSubstr("--cpu-activations int8"));
  EXPECT_THAT(refused([](auto& o) { o.cpu.int8_dense = true; }), HasSubstr("--cpu-dense int8"));
  EXPECT_THAT(refused([](auto& o) { o.backend_plugin.clear(); }), HasSubstr("names no file"));
  EXPECT_THAT(refused([](auto& o) { o.backend = "cpu"; }),
              HasSubstr("--backend-plugin: not with the cpu backend"));
}

TEST(PluginOptions, OfTheOtherKindOfMemoryAreRefusedByName) {
  LocalEngineOptions options = WithPlugin(ExamplePlugin());
  options.cache_budget.device_share = 0.5;
  EXPECT_THAT(Refusal(options), HasSubstr("--gpu-memory-utilization"));
  options.cache_budget.device_share = 0.9;  // written out for vLLM
  options.cache_budget.fraction = 0.5;
  options.weights = WeightsMode::kCopy;
  EXPECT_TRUE(LocalModel::Open(options).ok());

  const ChangedPlugin device([](auto& table) { table.host_readable = 0; });
  options = WithPlugin(device.path());
  options.weights = WeightsMode::kCopy;
  EXPECT_THAT(Refusal(options), HasSubstr("--weights copy"));
  options.weights = WeightsMode::kMmap;
  options.cache_budget.fraction = 0.5;
  EXPECT_THAT(Refusal(options), HasSubstr("--kv-cache-memory-fraction"));
  options.cache_budget = {};
  options.cache_budget.device_share = 0.5;
  EXPECT_TRUE(LocalModel::Open(options).ok());
}

TEST(PluginOptions, FormatsAndNumericsThatItLacksAreRefusedBeforeWeightsAreRead) {
  const ChangedPlugin fp8_only([](auto& table) {
    table.encodings = 1u << FATHOM_ENTRY_F32 | 1u << FATHOM_ENTRY_E4M3_ROPE;
    table.numerics = 1u << FATHOM_OFFICIAL;
  });
  LocalEngineOptions options = WithPlugin(fp8_only.path());
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("--indexer-cache-dtype fp4"),
                                      HasSubstr("plug-in example does not have this format")));
  options.cache_dtypes = CacheDTypes{CacheDType::kBf16, CacheDType::kFp4};
  EXPECT_THAT(Refusal(options), HasSubstr("--kv-cache-dtype bf16"));
  options.cache_dtypes.reset();
  options.numerics = Numerics::kExact;
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("--backend-plugin " + fp8_only.path()),
                                      HasSubstr("has no exact numerics")));
}

TEST(PluginOptions, FeaturesThatThePluginLacksAreRefusedByName) {
  LocalEngineOptions options = WithPlugin(ExamplePlugin());
  options.fp8_o_proj_inputs = true;
  EXPECT_TRUE(LocalModel::Open(options).ok());
  for (const ChangedPlugin& plugin : {ChangedPlugin([](auto& table) { table.features = 0; }),
                                      ChangedPlugin([](auto& table) { table.minor = 0; })}) {
    options.backend_plugin = plugin.path();
    EXPECT_EQ(LocalModel::Open(options).status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(Refusal(options), AllOf(HasSubstr("--o-proj-activations fp8"),
                                        HasSubstr("plug-in example has bf16 ones only")));
  }
}

TEST(PluginOptions, VersionsThatDoNotFitNameTheFile) {
  const ChangedPlugin newer([](auto& table) { ++table.minor; });
  EXPECT_THAT(Refusal(WithPlugin(newer.path())),
              AllOf(HasSubstr("--backend-plugin " + newer.path()), HasSubstr("version 1.2")));
  const ChangedPlugin shorter([](auto& table) { table.struct_size -= sizeof(void*); });
  EXPECT_THAT(Refusal(WithPlugin(shorter.path())), HasSubstr("struct_size"));
}

// Cached prefixes, blocks that are copied for two answers, and preemptions.
TEST(PluginEngine, GivesTheReferencesBitsInEitherKindOfMemory) {
  const ChangedPlugin device([](auto& table) { table.host_readable = 0; });
  std::vector<invariance::Answer> want;
  for (const std::string& plugin : {std::string(), ExamplePlugin(), device.path()}) {
    invariance::Setting setting;
    setting.model = ProjectPath("tests/data/tiny-a/checkpoint");
    setting.backend = plugin.empty() ? "reference" : "plugin";
    setting.backend_plugin = plugin;
    setting.max_batched_tokens = 64;
    setting.max_num_seqs = 4;
    setting.max_model_len = 512;
    setting.cache_bytes = int64_t{8} << 20;
    invariance::Engine engine(setting);
    ASSERT_TRUE(engine.ok());
    EXPECT_EQ(engine.core().device_memory().has_value(), plugin == device.path());
    std::vector<invariance::Case> cases;
    for (const int64_t length : {7, 40, 70}) {
      cases.push_back({invariance::Pattern(3, length, engine.vocab()), 5, 0.0, length});
    }
    invariance::Disturbance disturbance;
    disturbance.seed = 5;
    disturbance.random_budgets = true;
    disturbance.arrive_chance = 0.5;
    disturbance.preempt_chance = 0.2;
    std::vector<invariance::Answer> got = engine.Run(cases, disturbance);
    for (const invariance::Answer& warm : engine.Run(cases, disturbance)) {
      EXPECT_GT(warm.cached_tokens, 0);
      got.push_back(warm);
    }
    if (plugin.empty()) {
      want = std::move(got);
      continue;
    }
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(want[i].SameResult(got[i])) << invariance::Difference(want[i], got[i]);
    }
  }
}

}  // namespace
}  // namespace fathom
