#include "cli/graph_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command.h"

namespace fathom::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GraphFlags Config(const std::string& json) {
  GraphFlags flags;
  flags.compilation_config = json;
  return flags;
}

GraphOptions Options(const GraphFlags& flags) {
  const auto options = ToGraphOptions(flags);
  EXPECT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_TRUE(options.ok() && options->has_value());
  return options.ok() && options->has_value() ? **options : GraphOptions();
}

std::string Problem(const GraphFlags& flags) {
  const auto options = ToGraphOptions(flags);
  EXPECT_FALSE(options.ok());
  return std::string(options.status().message());
}

TEST(GraphOptions, NothingIsSaidByDefault) {
  for (const char* json :
       {"", "{}", R"({"cudagraph_mode":null})", R"({"custom_ops":["all"]})", "3"}) {
    const auto options = ToGraphOptions(Config(json));
    ASSERT_TRUE(options.ok()) << json;
    EXPECT_FALSE(options->has_value()) << json;
  }
}

TEST(GraphOptions, ModesHaveVllmsNames) {
  const std::vector<std::pair<const char*, GraphMode>> modes = {
      {"NONE", GraphMode::kNone},
      {"PIECEWISE", GraphMode::kPiecewise},
      {"FULL", GraphMode::kFull},
      {"full", GraphMode::kFull},
      {"FULL_DECODE_ONLY", GraphMode::kFullDecodeOnly},
      {"FULL_AND_PIECEWISE", GraphMode::kFullAndPiecewise}};
  for (const auto& [name, mode] : modes) {
    const GraphOptions options =
        Options(Config(R"({"cudagraph_mode":")" + std::string(name) + "\"}"));
    EXPECT_EQ(options.mode, mode) << name;
    EXPECT_THAT(options.sizes, IsEmpty());
  }
}

TEST(GraphOptions, EagerRecordsNone) {
  GraphFlags flags;
  flags.enforce_eager = true;
  EXPECT_EQ(Options(flags).mode, GraphMode::kNone);
  flags.compilation_config = R"({"cudagraph_mode":"NONE","mode":0})";
  EXPECT_EQ(Options(flags).mode, GraphMode::kNone);
  GraphFlags zero;
  zero.max_size = 0;
  EXPECT_EQ(Options(zero).mode, GraphMode::kNone);
  EXPECT_EQ(Options(Config(R"({"cudagraph_capture_sizes":[]})")).mode, GraphMode::kNone);
}

TEST(GraphOptions, SizesAreCutAtTheLargest) {
  GraphFlags flags;
  flags.sizes = {4, 1, 64};
  EXPECT_THAT(Options(flags).sizes, ElementsAre(4, 1, 64));
  EXPECT_EQ(Options(flags).mode, GraphMode::kFullAndPiecewise);
  flags.max_size = 16;
  EXPECT_THAT(Options(flags).sizes, ElementsAre(4, 1));
  flags.sizes.clear();
  EXPECT_EQ(Options(flags).sizes, DefaultGraphSizes(16));
  const GraphOptions config = Options(Config(
      R"({"cudagraph_mode":"FULL","cudagraph_capture_sizes":[1,8,9],"max_cudagraph_capture_size":8})"));
  EXPECT_EQ(config.mode, GraphMode::kFull);
  EXPECT_THAT(config.sizes, ElementsAre(1, 8));
  EXPECT_EQ(Options(Config(R"({"max_cudagraph_capture_size":32})")).sizes, DefaultGraphSizes(32));
}

TEST(GraphOptions, ContradictionsNameBoth) {
  GraphFlags flags = Config(R"({"cudagraph_mode":"FULL"})");
  flags.enforce_eager = true;
  EXPECT_THAT(Problem(flags), AllOf(HasSubstr("--enforce-eager"),
                                    HasSubstr("--compilation-config cudagraph_mode FULL")));
  flags = Config(R"({"cudagraph_mode":"NONE"})");
  flags.sizes = {1, 2};
  EXPECT_THAT(Problem(flags), AllOf(HasSubstr("--compilation-config cudagraph_mode NONE"),
                                    HasSubstr("--cudagraph-capture-sizes")));
  flags = Config(R"({"cudagraph_mode":"PIECEWISE"})");
  flags.max_size = 0;
  EXPECT_THAT(Problem(flags), AllOf(HasSubstr("--max-cudagraph-capture-size 0"),
                                    HasSubstr("cudagraph_mode PIECEWISE")));
  flags = Config(R"({"cudagraph_capture_sizes":[1]})");
  flags.sizes = {1};
  EXPECT_THAT(Problem(flags), AllOf(HasSubstr("--cudagraph-capture-sizes and"),
                                    HasSubstr("--compilation-config cudagraph_capture_sizes")));
  flags = Config(R"({"max_cudagraph_capture_size":8})");
  flags.max_size = 8;
  EXPECT_THAT(Problem(flags), AllOf(HasSubstr("--max-cudagraph-capture-size and"),
                                    HasSubstr("max_cudagraph_capture_size:")));
  flags = {};
  flags.sizes = {8, 16};
  flags.max_size = 4;
  EXPECT_THAT(Problem(flags), AllOf(HasSubstr("--max-cudagraph-capture-size 4"),
                                    HasSubstr("--cudagraph-capture-sizes")));
}

TEST(GraphOptions, BadValuesNameWhatIsTaken) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"{mode:0}", "quotes"},
      {"[]", "no JSON object"},
      {R"("FULL")", "no JSON object"},
      {R"({"cudagraf_mode":"FULL"})", "did you mean cudagraph_mode?"},
      {R"({"cudagraph_mode":"HALF"})", "NONE, PIECEWISE, FULL, FULL_DECODE_ONLY"},
      {R"({"cudagraph_mode":2})", "FULL_AND_PIECEWISE"},
      {R"({"cudagraph_capture_sizes":8})", "a list of numbers from 1 to 65536"},
      {R"({"cudagraph_capture_sizes":[0]})", "a list of numbers from 1"},
      {R"({"cudagraph_capture_sizes":[1,-2]})", "a list of numbers from 1"},
      {R"({"cudagraph_capture_sizes":[1,"2"]})", "a list of numbers from 1"},
      {R"({"cudagraph_capture_sizes":[1.5]})", "a list of numbers from 1"},
      {R"({"cudagraph_capture_sizes":[65537]})", "a list of numbers from 1"},
      {R"({"max_cudagraph_capture_size":-1})", "a number from 0 to 65536"},
      {R"({"max_cudagraph_capture_size":18446744073709551615})", "a number from 0"},
      {R"({"max_cudagraph_capture_size":[1]})", "a number from 0"}};
  for (const auto& [json, message] : cases) {
    EXPECT_THAT(Problem(Config(json)), HasSubstr(message)) << json;
  }
}

TEST(GraphOptions, OnlyTheCudaBackendRecords) {
  GraphFlags sizes, largest;
  sizes.sizes = {1};
  largest.max_size = 8;
  const std::vector<std::pair<GraphFlags, const char*>> cases = {
      {Config(R"({"cudagraph_mode":"FULL"})"), "--compilation-config cudagraph_mode FULL: refused"},
      {Config(R"({"cudagraph_capture_sizes":[1]})"),
       "--compilation-config cudagraph_capture_sizes: refused"},
      {sizes, "--cudagraph-capture-sizes: refused"},
      {largest, "--max-cudagraph-capture-size 8: refused"}};
  for (const auto& [flags, message] : cases) {
    for (const char* backend : {"cpu", "reference", "plugin"}) {
      const Status status = CheckGraphFlags(flags, backend);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(status.message(),
                  AllOf(HasSubstr(message), HasSubstr(std::string(backend) + " backend")));
    }
    EXPECT_TRUE(CheckGraphFlags(flags, "cuda").ok());
  }
  GraphFlags eager = Config(R"({"cudagraph_mode":"NONE"})");
  eager.enforce_eager = true;
  EXPECT_TRUE(CheckGraphFlags(eager, "cpu").ok());
  EXPECT_TRUE(CheckGraphFlags({}, "cpu").ok());
}

TEST(GraphOptions, WhatHasNoEffectIsSaid) {
  GraphFlags flags = Config(
      R"({"cudagraph_mode":"FULL","cudagraph_capture_sizes":[1],"custom_ops":["all"],"mode":3})");
  flags.max_size = 8;
  EXPECT_THAT(GraphWarnings(flags, "cuda"),
              ElementsAre("--compilation-config: no effect; custom_ops, mode: nothing is compiled "
                          "at run time"));
  EXPECT_THAT(GraphWarnings(flags, "cpu"),
              ElementsAre("--compilation-config: no effect; cudagraph_mode, "
                          "cudagraph_capture_sizes, custom_ops, mode: the cpu backend records no "
                          "steps and nothing is compiled at run time",
                          "--max-cudagraph-capture-size: no effect; the cpu backend records no "
                          "steps"));
  EXPECT_THAT(GraphWarnings(Config("3"), "cuda"), ElementsAre(HasSubstr("level")));
  GraphFlags eager = Config(R"({"cudagraph_mode":"NONE"})");
  eager.enforce_eager = true;
  for (const char* backend : {"cpu", "cuda"}) {
    EXPECT_THAT(GraphWarnings(eager, backend), IsEmpty());
  }
}

TEST(GraphOptions, TheyReachTheEngine) {
  ModelOptions model;
  model.backend = "cuda";
  const auto plain = ToEngineOptions(model);
  ASSERT_TRUE(plain.ok());
  EXPECT_FALSE(plain->graphs.has_value());
  model.graphs = Config(R"({"cudagraph_mode":"FULL_DECODE_ONLY"})");
  model.graphs.sizes = {1, 2, 4};
  const auto given = ToEngineOptions(model);
  ASSERT_TRUE(given.ok());
  ASSERT_TRUE(given->graphs.has_value());
  EXPECT_EQ(given->graphs->mode, GraphMode::kFullDecodeOnly);
  EXPECT_THAT(given->graphs->sizes, ElementsAre(1, 2, 4));
  model.backend = "reference";
  const auto refused = ToEngineOptions(model);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.status().message(), HasSubstr("cudagraph_mode FULL_DECODE_ONLY: refused"));
}

}  // namespace
}  // namespace fathom::cli
