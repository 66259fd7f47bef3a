// fathom bench at its smallest: what it says, not how fast anything is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cli/program.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "bench");
  arguments.emplace_back("--json");
  const Outcome outcome = RunFathom(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << outcome.out;
  if (!json.is_object()) return Json::object();
  EXPECT_EQ(json["bench"], arguments[1]);
  for (const char* name : {"version", "commit", "processors", "vectors", "threads", "model"}) {
    EXPECT_TRUE(json["conditions"].contains(name)) << name;
  }
  EXPECT_GE(json["conditions"]["repetitions"], 1);
  return json;
}

void ExpectSpread(const Json& row, const char* median, const char* low, const char* high) {
  ASSERT_TRUE(row[median].is_number() && row[low].is_number() && row[high].is_number()) << row;
  EXPECT_GT(row[low], 0.0);
  EXPECT_LE(row[low], row[median]);
  EXPECT_LE(row[median], row[high]);
}

TEST(Bench, StepPlansAllSequencesAtEachContext) {
  const Json json = Bench({"step", "--model", "nano", "--sequences", "3", "--contexts", "1K,2K",
                           "--steps", "20", "--repeats", "2"});
  const Json& rows = json["tables"]["planning of a decode step"];
  ASSERT_EQ(rows.size(), 2U);
  for (const Json& row : rows) {
    EXPECT_EQ(row["sequences"], 3);
    ExpectSpread(row, "median_us", "low_us", "high_us");
  }
  EXPECT_EQ(rows[1]["context_tokens"], 2048);
  EXPECT_GT(json["summary"]["slowest_median_us"], 0.0);
}

TEST(Bench, TurnsComputeWhatIsNew) {
  const Json json = Bench({"turns", "--turns", "3", "--uncached-turns", "2", "--system-tokens",
                           "600", "--question-tokens", "20", "--answer-tokens", "10"});
  const Json& tables = json["tables"];
  ASSERT_EQ(tables["repeated"].size(), 3U);
  ASSERT_EQ(tables["changed"].size(), 3U);
  ASSERT_EQ(tables["uncached"].size(), 2U);
  for (const char* name : {"repeated", "changed", "uncached"}) {
    EXPECT_EQ(tables[name][0]["computed_tokens"], 620) << name;
    EXPECT_EQ(tables[name][1]["prompt_tokens"], 650) << name;
    EXPECT_GT(tables[name][1]["first_token_ms"], 0.0) << name;
  }
  // The last sampled token was never computed, and a prompt's own last token always is.
  for (const size_t turn : {1U, 2U}) {
    EXPECT_EQ(tables["repeated"][turn]["computed_tokens"], 20 + 1);
    EXPECT_EQ(tables["changed"][turn]["computed_tokens"], 20 + 10 + 1);
  }
  EXPECT_EQ(tables["uncached"][1]["computed_tokens"], 650);
  EXPECT_EQ(json["summary"]["compared_turn"], 2);
}

TEST(Bench, ContextHoldsWhatThePlanSays) {
  const Json json =
      Bench({"context", "--depths", "700,5000", "--computed-tokens", "512", "--steps", "3"});
  const Json& rows = json["tables"]["decode step"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["depth"], 700);
  EXPECT_EQ(rows[0]["ratio"], 1.0);
  for (const Json& row : rows) ExpectSpread(row, "median_ms", "low_ms", "high_ms");
  ASSERT_EQ(json["tables"]["memory"].size(), 4U);
  EXPECT_EQ(json["tables"]["memory"][0]["blocks_in_use"], (5001 + 255) / 256);
  EXPECT_EQ(json["tables"]["memory"][0]["blocks_planned"], (5001 + 255) / 256);
  // Of a window no more than what the next position reads is held.
  for (const Json& row : json["tables"]["memory"]) {
    EXPECT_GT(row["blocks_in_use"], 0);
    EXPECT_LE(row["blocks_in_use"], row["blocks_planned"]);
    EXPECT_LE(row["blocks_planned"], row["blocks_at_most"]);
  }
  const Json& summary = json["summary"];
  EXPECT_EQ(summary["tokens"], 5001);
  EXPECT_LE(summary["slab_bytes_in_use"], summary["slab_bytes_planned"]);
}

TEST(Bench, StreamsAgreeWithOneLargeBatch) {
  const Json json = Bench({"streams", "--streams", "3,1", "--prompt-tokens", "40",
                           "--output-tokens", "6", "--repeats", "2"});
  const Json& rows = json["tables"]["decoding together"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["streams"], 1);
  EXPECT_EQ(rows[0]["scale"], 1.0);
  EXPECT_EQ(rows[1]["streams"], 3);
  for (const Json& row : rows) {
    ExpectSpread(row, "engine_tokens_per_s", "engine_low", "engine_high");
    ExpectSpread(row, "share", "share_low", "share_high");
  }
  ASSERT_EQ(json["tables"]["prompts and answers"].size(), 2U);
  EXPECT_GT(json["summary"]["share_of_3_streams"], 0.0);
}

TEST(Bench, CacheTimesTheBlockManager) {
  const Json json =
      Bench({"cache", "--model", "nano", "--sequences", "2", "--tokens", "1000", "--long-tokens",
             "4096", "--requests", "3", "--resume-points", "100", "--repeats", "2"});
  const Json& rows = json["tables"]["block manager"];
  ASSERT_EQ(rows.size(), 9U);
  for (const Json& row : rows) {
    EXPECT_FALSE(row["operation"].get<std::string>().empty());
    ExpectSpread(row, "median_us", "low_us", "high_us");
    EXPECT_GT(row["per_s"], 0.0);
  }
}

// Speed, bytes and the limit of every row of a table of `bench model`.
void ExpectSpeeds(const Json& rows) {
  for (const Json& row : rows) {
    ExpectSpread(row, "median_tokens_per_s", "low", "high");
    EXPECT_GT(row["cache_bytes_per_token"], 0);
    const double bytes =
        row["weight_bytes_per_token"].get<double>() + row["cache_bytes_per_token"].get<double>();
    const double gb_per_s = bytes * row["median_tokens_per_s"].get<double>() * 1e-9;
    EXPECT_NEAR(row["gb_per_s"], gb_per_s, 0.01 * gb_per_s);
    EXPECT_NEAR(row["share_of_read"],
                row["gb_per_s"].get<double>() / row["read_limit_gb_per_s"].get<double>(), 1e-9);
  }
}

TEST(Bench, ModelMeasuresPromptsAnswersAndTheMachine) {
  const Json json = Bench({"model", "--prefill", "40,20", "--contexts", "512,700", "--batch", "3,1",
                           "--batch-context", "10", "--computed-tokens", "256", "--steps", "2",
                           "--repeats", "2", "--max-num-batched-tokens", "32", "--threads", "1"});
  const Json& tables = json["tables"];
  ASSERT_EQ(tables["prefill"].size(), 2U);
  EXPECT_EQ(tables["prefill"][1]["prompt_tokens"], 40);
  ASSERT_EQ(tables["decode"].size(), 2U);
  EXPECT_EQ(tables["decode"][1]["context_tokens"], 700);
  ASSERT_EQ(tables["decode together"].size(), 2U);
  EXPECT_EQ(tables["decode together"][1]["batch"], 3);
  for (const char* name : {"prefill", "decode", "decode together"}) ExpectSpeeds(tables[name]);
  // One token reads the experts that it is routed to, several share some or none.
  EXPECT_EQ(tables["decode"][0]["experts_per_layer"], 4.0);
  EXPECT_EQ(tables["decode together"][0]["weight_bytes_per_token"],
            tables["decode"][0]["weight_bytes_per_token"]);
  EXPECT_LT(tables["decode together"][1]["weight_bytes_per_token"],
            tables["decode"][0]["weight_bytes_per_token"]);
  EXPECT_GT(json["summary"]["decode_at_700_over_512"], 0.0);
  EXPECT_EQ(json["conditions"]["chunk_tokens"], 32);
  ASSERT_EQ(tables["machine limits"].size(), 4U);
  const Json& read = tables["machine limits"][0];
  EXPECT_EQ(read["limit"], "read");
  ExpectSpread(read, "median", "low", "high");
  for (const Json& limit : tables["machine limits"]) {
    EXPECT_EQ(limit["median"] > 0.0, limit["by"] != "no instruction") << limit;
  }
}

TEST(Bench, ModelMeasuresPartsAlone) {
  const Json json = Bench({"model", "--parts", "decode", "--contexts", "2", "--steps", "1",
                           "--repeats", "1", "--threads", "1"});
  EXPECT_EQ(json["tables"].size(), 2U);
  EXPECT_EQ(json["tables"]["decode"].size(), 1U);
  EXPECT_EQ(json["conditions"]["graph_mode"], "NONE");
}

// In builds with the CUDA backend and beside a GPU; elsewhere refused by name.
TEST(Bench, ModelSetsRecordedStepsAgainstDirectOnes) {
  const Outcome outcome =
      RunFathom({"bench", "model", "--backend", "cuda", "--parts", "graphs", "--contexts", "2,300",
                 "--steps", "2", "--repeats", "2", "--cudagraph-capture-sizes", "1,2", "--json"});
  if (outcome.status != 0) {
    EXPECT_EQ(outcome.out, "");
    if (outcome.err.find("cmake --preset cuda") != std::string::npos) return;
    EXPECT_THAT(outcome.err, HasSubstr("no NVIDIA driver"));
    const char* required = std::getenv("FATHOM_REQUIRE_GPU");
    EXPECT_FALSE(required != nullptr && std::string_view(required) == "1") << outcome.err;
    GTEST_SKIP() << "SKIPPED: " << outcome.err;
  }
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_EQ(json["conditions"]["graph_mode"], "FULL_AND_PIECEWISE");
  ASSERT_EQ(json["tables"]["graphs"].size(), 2U);
  for (const Json& row : json["tables"]["graphs"]) {
    ExpectSpread(row, "direct_tokens_per_s", "direct_low", "direct_high");
    ExpectSpread(row, "recorded_tokens_per_s", "recorded_low", "recorded_high");
  }
  EXPECT_GE(json["summary"]["graph_recordings"], 1);
  EXPECT_GE(json["summary"]["graph_replays"], 4);
  EXPECT_GE(json["summary"]["graph_recording_bytes"], 0);
}

// The same beside a GPU.
TEST(Bench, ModelSetsTwoStreamsAgainstOne) {
  const Outcome outcome =
      RunFathom({"bench", "model", "--backend", "cuda", "--parts", "streams", "--contexts", "300",
                 "--steps", "2", "--repeats", "2", "--json"});
  if (outcome.status != 0) {
    EXPECT_EQ(outcome.out, "");
    if (outcome.err.find("cmake --preset cuda") != std::string::npos) return;
    EXPECT_THAT(outcome.err, HasSubstr("no NVIDIA driver"));
    const char* required = std::getenv("FATHOM_REQUIRE_GPU");
    EXPECT_FALSE(required != nullptr && std::string_view(required) == "1") << outcome.err;
    GTEST_SKIP() << "SKIPPED: " << outcome.err;
  }
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  ASSERT_EQ(json["tables"]["streams"].size(), 1U);
  const Json& row = json["tables"]["streams"][0];
  ExpectSpread(row, "serial_tokens_per_s", "serial_low", "serial_high");
  ExpectSpread(row, "streams_tokens_per_s", "streams_low", "streams_high");
}

TEST(Bench, ModelMeasuresSyntheticWeights) {
  const Json json =
      Bench({"model", "--synthetic", "tiny", "--layers", "3", "--weights-seed", "5", "--parts",
             "decode", "--contexts", "2", "--steps", "1", "--repeats", "1", "--threads", "1"});
  EXPECT_EQ(json["conditions"]["model"], "tiny, synthetic, seed 5");
  EXPECT_EQ(json["conditions"]["layers"], 3);
  EXPECT_EQ(json["conditions"]["weights"], "made in memory");
  ASSERT_EQ(json["tables"]["decode"].size(), 1U);
  EXPECT_GT(json["tables"]["decode"][0]["experts_per_layer"], 0.0);
  ExpectSpeeds(json["tables"]["decode"]);
}

TEST(Bench, OpsTimesEveryOperationAtEachNumberOfRows) {
  const Json json = Bench({"ops", "--shapes", "nano", "--rows", "3,1", "--memory", "16M",
                           "--time-ms", "1", "--repeats", "2", "--context", "255"});
  for (const char* name : {"1 row", "3 rows"}) {
    const Json& rows = json["tables"][name];
    std::set<std::string> operations;
    for (const Json& row : rows) {
      operations.insert(row["operation"].get<std::string>());
      ExpectSpread(row, "median_us", "low_us", "high_us");
      EXPECT_GE(row["runs"], 2);
      EXPECT_GT(row["activation_bytes"], 0) << row;
      EXPECT_GT(row["gb_per_s"], 0.0);
      EXPECT_GT(row["share_of_read"], 0.0);
    }
    EXPECT_EQ(operations.size(), 14U) << name;
  }
  EXPECT_EQ(json["tables"]["machine limits"].size(), 4U);
  EXPECT_EQ(json["conditions"]["weight_ring_bytes"], 4 << 20);
  EXPECT_EQ(json["conditions"]["device"], "host");
}

TEST(Bench, OpsTimesThoseThatAreNamed) {
  const Json json =
      Bench({"ops", "--shapes", "nano", "--rows", "1", "--memory", "16M", "--time-ms", "1",
             "--repeats", "1", "--only", "moe,rms_norm", "--backend", "reference"});
  const Json& rows = json["tables"]["1 row"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["operation"], "rms_norm");
  EXPECT_EQ(rows[1]["operation"], "moe");
  EXPECT_EQ(json["conditions"]["backend"], "reference");
}

TEST(Bench, OpsTimesFp8InputsOfTheOutputProjection) {
  const Json json =
      Bench({"ops", "--shapes", "nano", "--rows", "1", "--memory", "16M", "--time-ms", "1",
             "--repeats", "1", "--only", "inverse_rope_out", "--o-proj-activations", "fp8"});
  ASSERT_EQ(json["tables"]["1 row"].size(), 1U);
  EXPECT_EQ(json["tables"]["1 row"][0]["what"], "wo_a, fp8, e4m3 inputs");
  EXPECT_EQ(json["conditions"]["o_proj_inputs"], "fp8");
}

// As for ops below.
TEST(Bench, FusionsOnAGpuAreSetAgainstSmallKernels) {
  const Outcome outcome =
      RunFathom({"bench", "fusions", "--backend", "cuda", "--shapes", "nano", "--rows", "1,9",
                 "--context", "255", "--repeats", "2", "--json"});
  if (outcome.status != 0) {
    EXPECT_EQ(outcome.out, "");
    if (outcome.err.find("--backend cuda: this build has no CUDA backend") != std::string::npos) {
      return;
    }
    EXPECT_THAT(outcome.err, HasSubstr("cuda backend: no NVIDIA driver"));
    const char* required = std::getenv("FATHOM_REQUIRE_GPU");
    EXPECT_FALSE(required != nullptr && std::string_view(required) == "1") << outcome.err;
    GTEST_SKIP() << "SKIPPED: " << outcome.err;
  }
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  for (const char* name : {"1 row", "9 rows"}) {
    const Json& rows = json["tables"][name];
    EXPECT_EQ(rows.size(), 6U) << name;  // three compressors; two baselines of one fusion
    for (const Json& row : rows) {
      ExpectSpread(row, "fused_us", "fused_low_us", "fused_high_us");
      ExpectSpread(row, "baseline_us", "baseline_low_us", "baseline_high_us");
      EXPECT_GT(row["ratio"], 0.0);
      const bool steps = row["baseline"] == "steps";
      EXPECT_GE(row["baseline_kernels"], steps ? 4 : 37);
      EXPECT_EQ(row["queued_ahead"], "yes");
    }
  }
  EXPECT_EQ(json["summary"].size(), 4U);
  EXPECT_GT(json["summary"]["least_ratio_q_norm_rope_window_insert_over_tensor_operations"], 0.0);
}

// In builds with the CUDA backend and beside a GPU; elsewhere refused by name.
TEST(Bench, OpsOnAGpuAreSetAgainstItsLimits) {
  const Outcome outcome = RunFathom({"bench", "ops", "--backend", "cuda", "--shapes", "nano",
                                     "--rows", "1,3", "--memory", "16M", "--time-ms", "1",
                                     "--repeats", "2", "--context", "255", "--json"});
  if (outcome.status != 0) {
    EXPECT_EQ(outcome.out, "");
    if (outcome.err.find("--backend cuda: this build has no CUDA backend") != std::string::npos) {
      return;
    }
    EXPECT_THAT(outcome.err, HasSubstr("cuda backend: no NVIDIA driver"));
    const char* required = std::getenv("FATHOM_REQUIRE_GPU");
    EXPECT_FALSE(required != nullptr && std::string_view(required) == "1") << outcome.err;
    GTEST_SKIP() << "SKIPPED: " << outcome.err;
  }
  const Json json = Json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << outcome.out;
  EXPECT_THAT(json["conditions"]["device"], HasSubstr("GPU 0"));
  for (const char* name : {"1 row", "3 rows"}) {
    std::set<std::string> operations;
    for (const Json& row : json["tables"][name]) {
      operations.insert(row["operation"].get<std::string>());
      ExpectSpread(row, "median_us", "low_us", "high_us");
      EXPECT_GT(row["share_of_read"], 0.0);
    }
    EXPECT_EQ(operations.size(), 14U) << name;
  }
  const Json& limits = json["tables"]["machine limits"];
  ASSERT_EQ(limits.size(), 5U);
  for (const Json& limit : limits) ExpectSpread(limit, "median", "low", "high");
}

TEST(Bench, PeopleGetTables) {
  const Outcome outcome = RunFathom({"bench", "step", "-m", "nano", "--sequences", "2",
                                     "--contexts", "1K", "--steps", "4", "--repeats", "1"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\nplanning of a decode step\n  sequences  context_tokens"));
}

TEST(Bench, WhatCannotBeMeasuredIsRefused) {
  const auto expect = [](std::vector<std::string> arguments, int status, const char* message) {
    arguments.insert(arguments.begin(), "bench");
    const Outcome outcome = RunFathom(arguments);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
  };
  constexpr int kUsage = 2, kFailed = 1;
  expect({}, kUsage, "");
  expect({"steps"}, kUsage, "did you mean step?");
  expect({"step", "--stepz", "3"}, kUsage, "did you mean --steps?");
  expect({"step", "--sequences", "0"}, kUsage, "--sequences");
  expect({"step", "--contexts", "1K,x"}, kUsage, "--contexts");
  expect({"step", "--contexts", "2M"}, kFailed, "positions");
  expect({"step", "--contexts", "600"}, kFailed, "need one of at least");
  expect({"step", "--sequences", "4096", "--contexts", "1M"}, kFailed, "kept in memory");
  expect({"step", "--model", "nothing"}, kFailed, "nothing");
  expect({"cache", "--sequences", "65536", "--tokens", "1000K"}, kFailed, "kept in memory");
  expect({"cache", "--tokens", "1m", "--long-tokens", "2g"}, kFailed, "positions");
  expect({"turns", "--turns", "9999", "--answer-tokens", "2G"}, kUsage, "--answer-tokens");
  expect({"turns", "--turns", "9999", "--answer-tokens", "1m"}, kFailed, "positions");
  expect({"context", "--depths", "1M"}, kFailed, "depth 1048576");
  expect({"context", "--depths", "300,310"}, kFailed, "depth 310");
  expect({"context", "--computed-tokens", "300"}, kFailed, "whole blocks");
  expect({"context", "--computed-tokens", "1G"}, kFailed, "more than the model has");
  expect({"model", "--contexts", "1M"}, kFailed, "positions");
  expect({"model", "--backend", "cuda"}, kFailed, "--backend cuda");
  expect({"ops", "--backend", "cuda", "--threads", "2"}, kFailed, "--threads");
  expect({"ops", "--backend", "cuda", "--cpu-activations", "int8"}, kFailed, "--cpu-activations");
  expect({"model", "--prefill", "2M"}, kFailed, "positions");
  expect({"model", "--contexts", "300,310"}, kFailed, "context 310");
  expect({"model", "--contexts", "1"}, kFailed, "context 1");
  expect({"model", "--computed-tokens", "300"}, kFailed, "whole blocks");
  expect({"model", "--parts", "batch", "--batch", "4096", "--batch-context", "1000K"}, kFailed,
         "--batch-context");
  expect({"model", "--parts", "decoding"}, kUsage, "--parts");
  expect({"model", "--parts", "graphs"}, kFailed,
         "--parts graphs: the cpu backend records no steps");
  expect({"model", "--parts", "graphs", "--batch", "2"}, kFailed, "--batch");
  expect({"model", "--parts", "streams"}, kFailed,
         "--parts streams: the cpu backend has one stream");
  expect({"model", "--cudagraph-capture-sizes", "1,2"}, kFailed, "--cudagraph-capture-sizes");
  expect({"model", "--parts", "decode", "--prefill", "12"}, kFailed, "--prefill");
  expect({"model", "--batch", "0"}, kUsage, "--batch");
  expect({"model", "--threads", "0"}, kUsage, "--threads");
  expect({"model", "--synthetic", "tiny", "--layers", "99"}, kFailed, "--layers 99");
  expect({"model", "--synthetic", "tiny", "--model", "DIR"}, kUsage, "--synthetic");
  expect({"model", "--synthetic", "nothing"}, kFailed, "nothing");
  expect({"model", "--synthetic", "tiny", "--weights", "copy"}, kFailed, "--weights copy");
  expect({"model", "--layers", "2"}, kUsage, "--synthetic");
  expect({"model", "--expert-offload", "20"}, kFailed, "--expert-offload");
  expect({"ops", "--only", "moes"}, kUsage, "--only");
  expect({"ops", "--rows", "0"}, kUsage, "--rows");
  expect({"ops", "--shapes", "nothing"}, kFailed, "nothing");
  expect({"ops", "--context", "1M"}, kFailed, "positions");
  expect({"ops", "--memory", "8M", "--only", "moe"}, kFailed, "an expert has 4194304 bytes");
  expect({"ops", "--memory", "1024G"}, kFailed, "--memory");
  expect({"ops", "--rows", "65536"}, kFailed, "--rows");
  expect({"ops", "--backend", "gpu"}, kUsage, "--backend");
  expect({"ops", "--cpu-isa", "avx9000"}, kFailed, "--cpu-isa");
  for (const char* backend : {"cuda", "reference"}) {
    expect({"ops", "--cpu-isa", "portable", "--backend", backend}, kFailed, "--cpu-isa");
  }
  expect({"ops", "--cpu-activations", "int4"}, kUsage, "--cpu-activations");
  expect({"ops", "--cpu-activations", "int8", "--backend", "reference"}, kFailed,
         "--cpu-activations");
  expect({"fusions", "--backend", "cpu"}, kFailed, "--backend cpu");
  expect({"fusions", "--backend", "gpu"}, kUsage, "--backend");
  expect({"fusions", "--rows", "0"}, kUsage, "--rows");
  expect({"fusions", "--shapes", "nothing"}, kFailed, "nothing");
  expect({"ops", "--o-proj-activations", "int8"}, kUsage, "--o-proj-activations");
  expect({"streams", "--prompt-tokens", "1M"}, kFailed, "positions");
  expect({"streams", "--streams", "600", "--prompt-tokens", "1", "--output-tokens", "2"}, kFailed,
         "max-num-seqs 600");
}

}  // namespace
}  // namespace fathom::cli_test
