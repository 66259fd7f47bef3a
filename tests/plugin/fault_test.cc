// A plug-in whose functions fail in the middle of a step: the request gets the error, and the next
// one an answer as if nothing had been.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/plugin/plugin_backend.h"
#include "backend/plugin/plugin_library.h"
#include "engine/engine_core.h"
#include "tests/invariance/harness.h"
#include "tests/plugin/example_plugin.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

// The example's functions, and which call of a replaced one fails.
FathomBackendTable example;
int calls_left = 0;  // 0: none fails

FathomStatus Fault(FathomError* error) {
  if (calls_left == 0 || --calls_left > 0) return FATHOM_OK;
  std::snprintf(error->message, sizeof(error->message), "the device fell off its bus");
  return FATHOM_UNAVAILABLE;
}

template <auto kFunction, typename... Params>
FathomStatus Faulty(Params... params) {
  FathomError* const error = std::get<sizeof...(params) - 1>(std::tie(params...));
  if (const FathomStatus status = Fault(error); status != FATHOM_OK) return status;
  return (example.*kFunction)(params...);
}

template <auto kFunction, typename... Params>
void Replace(FathomBackendTable& table, FathomStatus (*FathomBackendTable::*)(Params...)) {
  table.*kFunction = Faulty<kFunction, Params...>;
}
template <auto kFunction>
void MakeFaulty(FathomBackendTable& table) {
  Replace<kFunction>(table, kFunction);
}

struct FaultyFunction {
  const char* name;
  int call;  // the one that fails
  void (*make)(FathomBackendTable&);
};

using Table = FathomBackendTable;
// Not the first call where a step has several: some entries are stored by then.
const FaultyFunction kFunctions[] = {
    {"begin_step", 1,
     [](Table& t) {
       t.begin_step = [](FathomBackend*, const FathomStepPlan*, FathomError* error) {
         return Fault(error);
       };
     }},
    {"rope_table", 2, MakeFaulty<&Table::rope_table>},
    {"embed_expand", 1, MakeFaulty<&Table::embed_expand>},
    {"hc_pre_norm", 3, MakeFaulty<&Table::hc_pre_norm>},
    {"linear", 5, MakeFaulty<&Table::linear>},
    {"rms_norm", 2, MakeFaulty<&Table::rms_norm>},
    {"q_norm_rope_kv_insert", 2, MakeFaulty<&Table::q_norm_rope_kv_insert>},
    {"compress_insert", 2, MakeFaulty<&Table::compress_insert>},
    {"indexer_topk", 1, MakeFaulty<&Table::indexer_topk>},
    {"sparse_attention", 3, MakeFaulty<&Table::sparse_attention>},
    {"inverse_rope_out", 2, MakeFaulty<&Table::inverse_rope_out>},
    {"hc_post", 4, MakeFaulty<&Table::hc_post>},
    {"route", 2, MakeFaulty<&Table::route>},
    {"moe", 2, MakeFaulty<&Table::moe>},
    {"head", 1, MakeFaulty<&Table::head>},
    {"copy_out", 1, MakeFaulty<&Table::copy_out>},
    {"synchronize", 1,
     [](Table& t) {
       t.synchronize = [](FathomBackend*, FathomError* error) { return Fault(error); };
     }},
};

// What became of a request.
class Recorder final : public RequestSink {
 public:
  void OnToken(const TokenEvent& event) override { tokens.push_back(event.token); }
  void OnFinish(const FinishEvent& event) override { finish = event; }
  std::vector<TokenId> tokens;
  FinishEvent finish;
};

std::shared_ptr<Recorder> Answer(EngineCore& core, RequestId id) {
  auto recorder = std::make_shared<Recorder>();
  GenerateRequest request;
  request.prompt = invariance::Pattern(3, 24, core.info().vocab_size);
  request.max_tokens = 3;
  request.sampling.temperature = 0.0;
  request.ignore_eos = true;
  auto job = core.Prepare(id, std::move(request), recorder);
  EXPECT_TRUE(job.ok()) << job.status().ToString();
  core.Add(std::move(job).value());
  while (!core.idle()) core.Step();
  return recorder;
}

class PluginFault : public testing::TestWithParam<FaultyFunction> {};

TEST_P(PluginFault, FailsItsRequestAndNoOther) {
  example = LoadPluginTable(ExamplePlugin()).value();
  FathomBackendTable table = example;
  table.host_readable = 0;  // so that copies are part of a step
  GetParam().make(table);
  calls_left = 0;
  LocalEngineOptions options;
  options.make_backend = [&table](Numerics numerics) -> Result<std::unique_ptr<Backend>> {
    FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<PluginBackend> backend,
                            PluginBackend::Create(table, numerics));
    return std::unique_ptr<Backend>(std::move(backend));
  };
  options.max_batched_tokens = 64;
  options.max_num_seqs = 4;
  options.max_model_len = 256;
  options.cache_budget.bytes = int64_t{8} << 20;
  const auto core = EngineCore::Create(
      Checkpoint::Open(ProjectPath("tests/data/tiny-a/checkpoint")).value(), {}, options);
  ASSERT_TRUE(core.ok()) << core.status().ToString();

  calls_left = GetParam().call;
  const auto failed = Answer(**core, 1);
  EXPECT_EQ(calls_left, 0) << "was not called so often";
  EXPECT_EQ(failed->finish.reason, FinishReason::kError);
  EXPECT_EQ(failed->finish.error.code(), StatusCode::kUnavailable);
  EXPECT_THAT(failed->finish.error.message(),
              HasSubstr("plug-in example: " + std::string(GetParam().name) +
                        ": the device fell off its bus"));
  const auto next = Answer(**core, 2);
  EXPECT_EQ(next->finish.reason, FinishReason::kLength) << next->finish.error.ToString();
  EXPECT_EQ(next->finish.cached_tokens, 0);  // nothing is kept of the step that failed
  const auto again = Answer(**core, 3);
  EXPECT_EQ(next->tokens, again->tokens);
  EXPECT_EQ(next->tokens.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Functions, PluginFault, testing::ValuesIn(kFunctions),
                         [](const auto& function) { return function.param.name; });

}  // namespace
}  // namespace fathom
