// --backend-plugin from outside: answers on the example plug-in, and what is no plug-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/cli/server.h"
#include "tests/plugin/example_plugin.h"

namespace fathom::cli_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Json = nlohmann::json;

constexpr const char* kSum = "What is 17*19? Return only the final integer.";

Json Generate(std::vector<std::string> backend) {
  std::vector<std::string> arguments = {"generate", "--json", "--logprobs",    "3", "--seed", "7",
                                        "-n",       "12",     "--temperature", "1", kSum};
  arguments.insert(arguments.begin() + 1, backend.begin(), backend.end());
  const Outcome outcome = RunFathom(arguments);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  Json json = Json::parse(outcome.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << outcome.out;
  json.erase("timing");
  return json;
}

// Its sums are the reference's, so its tokens and log-probabilities are, whatever holds its memory.
TEST(Plugin, GeneratesWhatTheReferenceDoes) {
  const Json want = Generate({"--backend", "reference"});
  EXPECT_EQ(Generate({"--backend-plugin", ExamplePlugin()}), want);
  EXPECT_EQ(Generate({"--backend-plugin", ExamplePlugin(), "--weights", "copy", "--kv-cache-dtype",
                      "bf16", "--indexer-cache-dtype", "fp8", "--kv-cache-memory-fraction", "0.1"}),
            want);
  const ChangedPlugin device([](auto& table) { table.host_readable = 0; });
  EXPECT_EQ(Generate({"--backend-plugin", device.path(), "--kv-cache-memory-bytes", "16M"}), want);
}

TEST(Plugin, WritesTheReferencesLogitsInBothNumerics) {
  const TempFolder folder;
  const std::string ids = folder.Write("ids.json", "[5, 81, 33, 200, 7, 19, 444]");
  for (const char* mode : {"official", "exact"}) {
    std::vector<std::string> files;
    for (const std::vector<std::string>& backend : std::vector<std::vector<std::string>>{
             {"--backend", "reference"}, {"--backend-plugin", ExamplePlugin()}}) {
      const std::string out = (folder.path() / (mode + backend[0] + ".safetensors")).string();
      std::vector<std::string> arguments = {"logits", "--mode", mode, "--tokens", ids, "-o", out};
      arguments.insert(arguments.end(), backend.begin(), backend.end());
      const Outcome outcome = RunFathom(arguments);
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      files.push_back(ReadFile(out));
    }
    EXPECT_EQ(files[0], files[1]) << mode;
  }
}

TEST(Plugin, Serves) {
  Server server({"--backend-plugin", ExamplePlugin(), "--kv-cache-memory-bytes", "16M"});
  ASSERT_NE(server.port(), 0);
  const Json body = {{"prompt", "Once"}, {"max_tokens", 4}, {"temperature", 0}};
  const http::TestClient::Reply reply = server.Post("/v1/completions", body);
  EXPECT_EQ(reply.status, 200) << reply.body;
}

TEST(Plugin, OperationsAreTimedOnTheHostsMemoryOnly) {
  std::vector<std::string> arguments = {"bench",     "ops",      "--shapes",  "nano",
                                        "--rows",    "1",        "--memory",  "16M",
                                        "--time-ms", "1",        "--repeats", "1",
                                        "--only",    "rms_norm", "--json",    "--backend-plugin"};
  arguments.push_back(ExamplePlugin());
  const Outcome timed = RunFathom(arguments);
  ASSERT_EQ(timed.status, 0) << timed.err;
  EXPECT_EQ(Json::parse(timed.out)["conditions"]["backend"], "plug-in example");

  const ChangedPlugin device([](auto& table) { table.host_readable = 0; });
  arguments.back() = device.path();
  EXPECT_THAT(RunFathom(arguments).err,
              HasSubstr("--backend-plugin " + device.path() + ": has a memory of its own"));
  EXPECT_THAT(RunFathom({"bench", "model", "--backend-plugin", device.path()}).err,
              HasSubstr("--backend-plugin " + device.path() + ": has a memory of its own"));
}

// Every command that computes takes it, and says which file is wrong.
TEST(Plugin, FilesThatAreNoneEndEveryCommandByName) {
  const std::vector<std::vector<std::string>> commands = {
      {"generate", kSum},
      {"chat"},
      {"serve", "--port", "0"},
      {"logits", "--tokens", "-", "-o", "/dev/null"},
      {"bench", "model", "--prefill", "16", "--parts", "prefill"},
      {"bench", "ops", "--shapes", "nano", "--memory", "16M"},
      {"bench", "turns"},
      {"bench", "context"},
      {"bench", "streams"}};
  for (std::vector<std::string> command : commands) {
    const std::string name = command[0] + " " + (command.size() > 1 ? command[1] : "");
    command.insert(command.end(), {"--backend-plugin", "nothing/here.so"});
    const Outcome outcome = RunFathom(command, "[1]");
    EXPECT_EQ(outcome.status, 1) << name;
    EXPECT_THAT(outcome.out + outcome.err,
                HasSubstr("--backend-plugin nothing/here.so: No such file or directory"))
        << name;
  }
}

TEST(Plugin, OptionsThatDoNotGoWithItAreRefused) {
  const auto refused = [](std::vector<std::string> options, int status) {
    options.insert(options.begin(), {"generate", "--backend-plugin", ExamplePlugin(), kSum});
    const Outcome outcome = RunFathom(options);
    EXPECT_EQ(outcome.status, status) << outcome.err;
    EXPECT_THAT(outcome.out, IsEmpty());
    return outcome.err;
  };
  constexpr int kUsage = 2, kFailed = 1;
  EXPECT_THAT(refused({"--backend", "cpu"}, kUsage),
              AllOf(HasSubstr("--backend"), HasSubstr("excludes"), HasSubstr("--backend-plugin")));
  EXPECT_THAT(refused({"--threads", "2"}, kFailed), HasSubstr("--threads"));
  EXPECT_THAT(refused({"--numa", "off"}, kFailed), HasSubstr("--numa"));
  EXPECT_THAT(refused({"--cpu-isa", "portable"}, kFailed), HasSubstr("--cpu-isa"));
  EXPECT_THAT(refused({"--cpu-activations", "int8"}, kFailed), HasSubstr("--cpu-activations int8"));
  EXPECT_THAT(refused({"--cpu-dense", "int8"}, kFailed), HasSubstr("--cpu-dense int8"));
  EXPECT_THAT(refused({"--gpu-memory-utilization", "0.5"}, kFailed),
              HasSubstr("--gpu-memory-utilization"));
  EXPECT_THAT(refused({"--expert-offload", "20"}, kFailed),
              AllOf(HasSubstr("--expert-offload"), HasSubstr("20: refused")));
  EXPECT_THAT(refused({"--expert-profile", "use.json"}, kFailed), HasSubstr("--expert-profile"));
  EXPECT_THAT(RunFathom({"generate", "--backend-plugin", "", kSum}).err,
              HasSubstr("--backend-plugin: names no file"));
  EXPECT_THAT(RunFathom({"serve", "--backend", "cpu", "--backend-plugin", ExamplePlugin()}).err,
              AllOf(HasSubstr("--backend"), HasSubstr("--backend-plugin")));
}

}  // namespace
}  // namespace fathom::cli_test
