// fathom generate with the bundled model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr const char* kSum = "What is 17*19? Return only the final integer.";

std::string Generate(std::vector<std::string> options, std::string_view input = {}) {
  options.insert(options.begin(), {"generate", "--quiet"});
  const Outcome outcome = RunFathom(options, input);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  return outcome.out;
}

Json GenerateJson(std::vector<std::string> options, std::string_view input = {}) {
  options.emplace_back("--json");
  const std::string out = Generate(std::move(options), input);
  Json json = Json::parse(out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << out;
  return json;
}

TEST(Generate, PromptFileAndStandardInputAreTheSameQuestion) {
  const TempFolder folder;
  EXPECT_EQ(Generate({"--temperature", "0", kSum}), "323\n");
  EXPECT_EQ(Generate({"--temperature", "0", "--file", folder.Write("prompt", kSum)}), "323\n");
  EXPECT_EQ(Generate({"--temperature", "0", "-f", "-"}, kSum), "323\n");
  const Json messages = {{{"role", "user"}, {"content", kSum}}};
  EXPECT_EQ(Generate({"--temperature", "0", "--messages", "-"}, messages.dump()), "323\n");
  const std::string request = Json{{"messages", messages}}.dump();
  EXPECT_EQ(Generate({"--temperature", "0", "--messages", folder.Write("request", request)}),
            "323\n");
}

TEST(Generate, RecordsHowOftenExpertsAreUsed) {
  const TempFolder folder;
  const std::string path = (folder.path() / "use.json").string();
  EXPECT_EQ(Generate({"--temperature", "0", "--record-expert-use", path, kSum}), "323\n");
  const Json use = Json::parse(ReadFile(path), nullptr, false);
  ASSERT_TRUE(use.is_object());
  EXPECT_EQ(use["version"], 1);
  ASSERT_EQ(use["counts"].size(), use["num_layers"]);
  int64_t first = -1;
  for (const Json& layer : use["counts"]) {
    int64_t sum = 0;
    for (const Json& count : layer) sum += count.get<int64_t>();
    EXPECT_GT(sum, 0);
    EXPECT_EQ(sum % use["experts_per_token"].get<int64_t>(), 0);
    if (first < 0) first = sum;
    EXPECT_EQ(sum, first);  // every row goes through every layer
  }
  const Outcome refused =
      RunFathom({"generate", "--record-expert-use", "/no/such/folder/use.json", kSum});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("--record-expert-use /no/such/folder/use.json"));
  EXPECT_EQ(refused.out, "");
}

TEST(Generate, TimingGoesToStandardErrorOnly) {
  const Outcome outcome = RunFathom({"generate", "--temperature", "0", kSum});
  EXPECT_EQ(outcome.out, "323\n");
  EXPECT_THAT(outcome.err, StartsWith("[prompt: "));
  EXPECT_THAT(outcome.err, HasSubstr("finish: stop]"));
}

TEST(Generate, ReasoningComesFirstAndIsNotDimmedInAPipe) {
  const std::string out = Generate({"--thinking", "high", "--temperature", "0", kSum});
  EXPECT_THAT(out, StartsWith("I need to compute"));
  EXPECT_THAT(out, ::testing::EndsWith("\n\n323\n"));
  EXPECT_THAT(out, Not(HasSubstr("\033")));
}

TEST(Generate, ReasoningIsDimmedOnATerminal) {
  Program program({"generate", "-q", "--thinking", "high", "--temperature", "0", kSum},
                  Io::kTerminal);
  const Outcome outcome = program.Finish();
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith("\033[2mI need to compute"));
  EXPECT_THAT(outcome.out, HasSubstr("\033[0m\r\n\r\n323"));
}

TEST(Generate, JsonSaysAllThereIs) {
  const Json json =
      GenerateJson({"--thinking", "high", "--temperature", "0", "--logprobs", "2", kSum});
  EXPECT_THAT(json.at("reasoning").get<std::string>(), HasSubstr("17 * 19"));
  EXPECT_EQ(json.at("content"), "323");
  EXPECT_EQ(json.at("finish_reason"), "stop");
  EXPECT_TRUE(json.at("stop_reason").is_null());
  const size_t n = json.at("token_ids").size();
  EXPECT_EQ(json.at("usage").at("completion_tokens"), n);
  EXPECT_EQ(json.at("usage").at("total_tokens").get<size_t>(),
            n + json.at("usage").at("prompt_tokens").get<size_t>());
  EXPECT_GE(json.at("timing").at("prefill_seconds").get<double>(), 0.0);
  EXPECT_GE(json.at("timing").at("decode_seconds").get<double>(), 0.0);
  ASSERT_EQ(json.at("logprobs").size(), n);
  std::string text;
  for (size_t i = 0; i < n; ++i) {
    const Json& entry = json["logprobs"][i];
    EXPECT_EQ(entry.at("id"), json["token_ids"][i]);
    EXPECT_LE(entry.at("logprob").get<double>(), 0.0);
    ASSERT_EQ(entry.at("top_logprobs").size(), 2u);
    // Greedy: the token is the likeliest one.
    EXPECT_EQ(entry["top_logprobs"][0].at("id"), entry["id"]);
    EXPECT_GE(entry["top_logprobs"][0].at("logprob").get<double>(),
              entry["top_logprobs"][1].at("logprob").get<double>());
    const auto bytes = entry.at("bytes").get<std::vector<uint8_t>>();
    text.append(bytes.begin(), bytes.end());
  }
  EXPECT_THAT(text, HasSubstr("</think>323"));
}

TEST(Generate, JsonWithoutLogprobsHasNone) {
  const Json json = GenerateJson({"--temperature", "0", kSum});
  EXPECT_TRUE(json.at("reasoning").is_null());
  EXPECT_FALSE(json.contains("logprobs"));
}

TEST(Generate, RawTextIsCompletedAsItIs) {
  const Json json =
      GenerateJson({"--raw", "--temperature", "0", "-n", "12", "--ignore-eos", "Once upon a time"});
  EXPECT_FALSE(json.contains("content"));
  EXPECT_FALSE(json.at("text").get<std::string>().empty());
  EXPECT_EQ(json.at("finish_reason"), "length");
  EXPECT_EQ(json.at("token_ids").size(), 12u);
}

TEST(Generate, StopStringsEndTheAnswerBeforeThem) {
  const Json json =
      GenerateJson({"--temperature", "0", "--stop", "zzz", "--stop", "fathom", "Who are you?"});
  const std::string content = json.at("content");
  EXPECT_FALSE(content.empty());
  EXPECT_THAT(content, Not(HasSubstr("fathom")));
  EXPECT_EQ(json.at("finish_reason"), "stop");
  EXPECT_EQ(json.at("stop_reason"), "fathom");
  EXPECT_EQ(RunFathom({"generate", "--stop", "", "hi"}).status, 1);
}

TEST(Generate, LimitsOfLengthHold) {
  EXPECT_EQ(GenerateJson({"-n", "1", "--temperature", "0", "Hello!"}).at("token_ids").size(), 1u);
  const Json longer =
      GenerateJson({"--min-tokens", "40", "-n", "45", "--temperature", "0", "Hello!"});
  EXPECT_GE(longer.at("token_ids").size(), 40u);
  // The context ends the answer too.
  const Json full =
      GenerateJson({"--max-model-len", "32", "--ignore-eos", "--raw", "Once upon a time"});
  EXPECT_EQ(full.at("usage").at("total_tokens"), 32);
  EXPECT_EQ(full.at("finish_reason"), "length");
  const Outcome none = RunFathom({"generate", "--max-model-len", "4", kSum});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("the maximum context length is 4"));
}

TEST(Generate, SeedsDecideWhatIsDrawn) {
  const auto draw = [](const char* seed, const char* threads, const char* chunk) {
    return Generate({"--raw", "--temperature", "1", "--ignore-eos", "-n", "40", "--seed", seed,
                     "--threads", threads, "--max-num-batched-tokens", chunk, "Once upon a time"});
  };
  const std::string first = draw("1", "1", "512");
  EXPECT_EQ(draw("1", "1", "512"), first);
  EXPECT_EQ(draw("1", "2", "3"), first) << "threads and chunks must not matter";
  EXPECT_NE(draw("2", "1", "512"), first);
  EXPECT_FALSE(draw("-9223372036854775808", "1", "512").empty());
}

TEST(Generate, BackendsAgreeOnGreedyText) {
  const std::vector<std::string> ask = {
      "--temperature", "0", "--thinking", "high", "-n", "30", kSum};
  std::vector<std::string> reference = ask;
  reference.insert(reference.end(), {"--backend", "reference"});
  EXPECT_EQ(Generate(ask), Generate(reference));
}

TEST(Generate, WeightsAreWhereTheyAreAskedFor) {
  const auto log = [](const char* weights) {
    const Outcome outcome = RunFathom(
        {"--log-level", "info", "generate", "--weights", weights, "--temperature", "0", kSum});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "323\n") << weights;
    return outcome.err;
  };
  EXPECT_THAT(log("mmap"), HasSubstr("used in place"));
  EXPECT_THAT(log("copy"), HasSubstr("copied into memory"));
  EXPECT_THAT(log("hugepages"), HasSubstr("in huge pages"));
  EXPECT_EQ(Generate({"--numa", "off", "--temperature", "0", kSum}), "323\n");
}

TEST(Generate, InstructionSetsAndInt8AreOptionsOfTheCpu) {
  for (const char* isa : {"auto", "portable"}) {
    EXPECT_EQ(Generate({"--cpu-isa", isa, "--temperature", "0", kSum}), "323\n") << isa;
  }
  // fathom-nano knows its sums well enough for coarser numbers.
  EXPECT_EQ(
      Generate({"--cpu-activations", "int8", "--cpu-dense", "int8", "--temperature", "0", kSum}),
      "323\n");
  const auto refused = [](std::vector<std::string> options) {
    options.insert(options.begin(), "generate");
    options.push_back(kSum);
    const Outcome outcome = RunFathom(options);
    EXPECT_NE(outcome.status, 0);
    EXPECT_THAT(outcome.out, IsEmpty());
    return outcome.err;
  };
  EXPECT_THAT(refused({"--cpu-isa", "avx9000"}), AllOf(HasSubstr("--cpu-isa"), HasSubstr("avx2")));
  EXPECT_THAT(refused({"--cpu-dense", "int4"}), HasSubstr("--cpu-dense"));
  EXPECT_THAT(refused({"--backend", "reference", "--cpu-activations", "int8"}),
              HasSubstr("--cpu-activations int8"));
  EXPECT_THAT(refused({"--backend", "reference", "--cpu-dense", "int8"}),
              HasSubstr("--cpu-dense int8"));
  EXPECT_THAT(refused({"--gpu-memory-utilization", "0.5"}),
              AllOf(HasSubstr("--gpu-memory-utilization 0.5: refused"), HasSubstr("cpu backend")));
}

TEST(Generate, StepsAreRecordedByTheCudaBackendOnly) {
  // What a backend does anyway may be said.
  EXPECT_EQ(Generate({"--enforce-eager", "--temperature", "0", kSum}), "323\n");
  EXPECT_EQ(Generate({"--compilation-config", R"({"cudagraph_mode":"NONE"})", "--temperature", "0",
                      kSum}),
            "323\n");
  const auto refused = [](std::vector<std::string> options, int status) {
    options.insert(options.begin(), {"generate", kSum});
    const Outcome outcome = RunFathom(options);
    EXPECT_EQ(outcome.status, status);
    EXPECT_THAT(outcome.out, IsEmpty());
    return outcome.err;
  };
  EXPECT_THAT(refused({"--compilation-config", R"({"cudagraph_mode":"FULL"})"}, 1),
              AllOf(HasSubstr("--compilation-config cudagraph_mode FULL: refused"),
                    HasSubstr("cpu backend")));
  EXPECT_THAT(refused({"--cudagraph-capture-sizes", "1", "2", "4"}, 1),
              HasSubstr("--cudagraph-capture-sizes: refused"));
  EXPECT_THAT(refused({"--max-cudagraph-capture-size", "8", "--backend", "reference"}, 1),
              AllOf(HasSubstr("--max-cudagraph-capture-size 8"), HasSubstr("reference backend")));
  EXPECT_THAT(
      refused({"--backend", "cuda", "--enforce-eager", "--cudagraph-capture-sizes", "1"}, 1),
      AllOf(HasSubstr("--enforce-eager"), HasSubstr("--cudagraph-capture-sizes")));
  EXPECT_THAT(refused({"--compilation-config", R"({"cudagraph_mode":"HALF"})"}, 2),
              AllOf(HasSubstr("--compilation-config"), HasSubstr("FULL_DECODE_ONLY")));
  EXPECT_THAT(refused({"--cudagraph-capture-sizes", "0"}, 2),
              HasSubstr("--cudagraph-capture-sizes"));
}

TEST(Generate, InputsOfTheOutputProjectionMayBeFp8) {
  for (const char* backend : {"cpu", "reference"}) {
    EXPECT_EQ(Generate({"--backend", backend, "--o-proj-activations", "fp8", "--temperature", "0",
                        "-n", "8", kSum}),
              "323\n")
        << backend;
  }
  const Outcome other = RunFathom({"generate", "--o-proj-activations", "int8", kSum});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("--o-proj-activations"));
  const Outcome both =
      RunFathom({"generate", "--o-proj-activations", "fp8", "--cpu-dense", "int8", kSum});
  EXPECT_EQ(both.status, 1);
  EXPECT_THAT(both.err,
              AllOf(HasSubstr("--o-proj-activations fp8"), HasSubstr("--cpu-dense int8")));
}

// Tests run where there is no GPU; what is refused is refused before one is looked for.
TEST(Generate, OptionsOfTheCpuAreRefusedWithTheCudaBackend) {
  const auto refused = [](std::vector<std::string> options) {
    options.insert(options.begin(), {"generate", "--backend", "cuda"});
    options.push_back(kSum);
    const Outcome outcome = RunFathom(options);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.out, IsEmpty());
    return outcome.err;
  };
  EXPECT_THAT(refused({"--threads", "2"}), HasSubstr("--threads"));
  EXPECT_THAT(refused({"--numa", "off"}), HasSubstr("--numa"));
  EXPECT_THAT(refused({"--weights", "copy"}), HasSubstr("--weights copy"));
  EXPECT_THAT(refused({"--cpu-isa", "portable"}), HasSubstr("--cpu-isa"));
  EXPECT_THAT(refused({"--cpu-activations", "int8"}), HasSubstr("--cpu-activations int8"));
  EXPECT_THAT(refused({"--cpu-dense", "int8"}), HasSubstr("--cpu-dense int8"));
  EXPECT_THAT(refused({"--kv-cache-memory-fraction", "0.5"}),
              HasSubstr("--gpu-memory-utilization"));
  // Without the backend, or without a GPU.
  if (std::getenv("FATHOM_REQUIRE_GPU") == nullptr) {
    EXPECT_THAT(refused({}), AnyOf(HasSubstr("cmake --preset cuda"), HasSubstr("GPU")));
  }
}

TEST(Generate, CtrlCEndsWithWhatCame) {
  Program program({"generate", "--raw", "--ignore-eos", "-n", "100000", "--temperature", "0",
                   "Once upon a time"});
  ASSERT_TRUE(program.WaitForOutput(" "));
  program.Signal(SIGINT);
  const Outcome outcome = program.Finish();
  EXPECT_EQ(outcome.status, 130) << outcome.err;
  EXPECT_FALSE(outcome.out.empty());
  EXPECT_EQ(outcome.out.back(), '\n');
  EXPECT_THAT(outcome.err, HasSubstr("finish: abort]"));
}

TEST(Generate, BadPromptsAreErrors) {
  const auto fails = [](const std::vector<std::string>& arguments, std::string_view input,
                        const std::string& message) {
    const Outcome outcome = RunFathom(arguments, input);
    EXPECT_EQ(outcome.status, 1) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  };
  fails({"generate", "--messages", "-"}, "[", "invalid JSON");
  fails({"generate", "--messages", "-"}, "[]", "messages");
  fails({"generate", "-f", "-"}, "\xff\xfe", "UTF-8");
  fails({"generate", "--raw", "\xff"}, "", "UTF-8");
}

}  // namespace
}  // namespace fathom::cli_test
