// fathom bench at its smallest: what it says, not how fast anything is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
  expect({"streams", "--prompt-tokens", "1M"}, kFailed, "positions");
  expect({"streams", "--streams", "600", "--prompt-tokens", "1", "--output-tokens", "2"}, kFailed,
         "max-num-seqs 600");
}

}  // namespace
}  // namespace fathom::cli_test
