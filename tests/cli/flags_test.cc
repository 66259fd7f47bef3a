// fathom serve: flags of vLLM, configuration from files and variables, logs. What each flag does is
// cli/serve_arguments_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "server/http/test_client.h"
#include "tests/cli/program.h"
#include "tests/reports/report_files.h"

namespace fathom::cli_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;
using http::TestClient;

// Set for the programs that are started while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

class Server {
 public:
  explicit Server(std::vector<std::string> options)
      : program_([&options] {
          options.insert(options.begin(), {"serve", "--port", "0"});
          return options;
        }()) {
    const std::string before = "http://127.0.0.1:";
    if (!program_.WaitForOutput(before) || !program_.WaitForOutput("/v1")) return;
    port_ = std::atoi(program_.output().c_str() + program_.output().find(before) + before.size());
  }
  [[nodiscard]] int port() const { return port_; }  // 0: it did not start
  Program& program() { return program_; }
  std::string Stop() {
    program_.Signal(SIGTERM);
    Outcome outcome = program_.Finish();
    EXPECT_EQ(outcome.status, 0);
    return outcome.err;
  }

 private:
  Program program_;
  int port_ = 0;
};

std::string Complete(int port, const Json& fields) {
  Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 8}};
  body.update(fields);
  return TestClient(port).Ask("POST", "/v1/completions", body.dump()).body;
}

std::string TextOf(const std::string& answer) {
  const Json json = Json::parse(answer, nullptr, false);
  return json.at("choices").at(0).at("text").get<std::string>();
}

// The report's command line with what this test can serve in place of $TINY.
std::vector<std::string> Adapted(const Json& argv) {
  auto arguments = argv.get<std::vector<std::string>>();
  for (std::string& argument : arguments) {
    if (argument == "$TINY") argument = ProjectPath("models/fathom-nano").string();
  }
  arguments.erase(arguments.begin());  // "serve", which Server writes
  return arguments;
}

// R148: parsers have one name more or less in each engine.
TEST(FlagReports, ParsersAreKnownByAllTheirSpellings) {
  const Json report = reports::ReadReport("R148");
  for (const Json& argv : report.at("input").at("cases")) {
    const std::vector<std::string> arguments = Adapted(argv);
    if (arguments.back() != "deepseek_v9") {
      Server server(arguments);
      EXPECT_NE(server.port(), 0) << argv;
      continue;
    }
    std::vector<std::string> whole = arguments;
    whole.insert(whole.begin(), "serve");
    const Outcome outcome = RunFathom(whole);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("deepseek_v9"), HasSubstr("there are deepseek_v4")));
  }
  const Outcome defaults = RunFathom({"serve", "--print-config"});
  EXPECT_THAT(defaults.out, AllOf(HasSubstr("\ntool-call-parser: deepseek_v4  # default\n"),
                                  HasSubstr("\nreasoning-parser: deepseek_v4  # default\n")));
}

// R117 as far as it goes without drafts. --speculative is --speculative-config.method here.
TEST(FlagReports, AnUnknownMethodOfDraftsIsAnsweredWithTheKnownOnes) {
  const Json report = reports::ReadReport("R117");
  for (const Json& argv : report.at("input").at("cases")) {
    std::vector<std::string> arguments = Adapted(argv);
    arguments.insert(arguments.begin(), "serve");
    for (std::string& argument : arguments) {
      if (argument == "--speculative") argument = "--speculative-config.method";
    }
    const Outcome outcome = RunFathom(arguments);
    EXPECT_EQ(outcome.status, 2) << argv;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("mtp"), HasSubstr("dspark")));
    EXPECT_EQ(outcome.err.find("no method") != std::string::npos, arguments.back() == "warp");
  }
}

// R145 as far as it goes without GPUs.
TEST(FlagReports, ADeviceThatIsNotThereIsRefusedAtOnce) {
  const Json report = reports::ReadReport("R145");
  std::vector<std::string> arguments = Adapted(report.at("input").at("argv"));
  arguments.insert(arguments.begin(), "serve");
  const Outcome outcome = RunFathom(arguments);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("--device cuda"), HasSubstr("--device cpu")));
}

// R160: JSON that a shell took apart, for each flag that takes JSON.
TEST(FlagReports, JsonWithoutQuotesIsNamed) {
  for (const char* flag : {"--compilation-config", "--attention-config", "--speculative-config",
                           "--kv-transfer-config", "--reasoning-config", "--hf-overrides",
                           "--override-generation-config", "--eplb-config"}) {
    const Outcome outcome =
        RunFathom({"serve", flag, "{cudagraph_mode:FULL,", "custom_ops:[all]}"});
    EXPECT_EQ(outcome.status, 2) << flag;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(flag), HasSubstr("quotes")));
  }
}

TEST(Flags, WarningsNameTheFlagAndTheServerRuns) {
  Server server({"--trust-remote-code", "--kv-cache-dtype", "fp8", "--block-size", "256",
                 "--compilation-config", R"({"cudagraph_mode":"FULL_AND_PIECEWISE"})", "-tp", "1",
                 "--attention_config.use_fp4_indexer_cache=True", "--enforce-eager"});
  ASSERT_NE(server.port(), 0);
  const std::string log = server.Stop();
  EXPECT_THAT(log, HasSubstr("warning --trust-remote-code: no effect; no Python is run"));
  EXPECT_THAT(log, HasSubstr("warning --compilation-config: no effect; cudagraph_mode: the cpu "
                             "backend records no steps"));
  EXPECT_THAT(log, AllOf(Not(HasSubstr("--enforce-eager")), Not(HasSubstr("--tensor-parallel"))));
}

TEST(Flags, OptionsOfTheProgramMayStandBeforeTheCommand) {
  for (const std::vector<std::string>& before :
       std::vector<std::vector<std::string>>{{"--log-level", "error"}, {"--log_level=error"}}) {
    std::vector<std::string> arguments = before;
    arguments.insert(arguments.end(), {"serve", "-tp", "2", "--max-modl-len", "8"});
    const Outcome outcome = RunFathom(arguments);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("fathom: 2 problems with the arguments:\n"));
  }
}

TEST(Flags, HelpIsGroupedAndListsVllms) {
  const Outcome help = RunFathom({"serve", "--help"});
  EXPECT_EQ(help.status, 0);
  size_t at = 0;
  for (const char* title :
       {"\nModel:", "\nScheduling:", "\nMemory and cache:", "\nRecorded steps (CUDA graphs)",
        "\nParsers and chat:", "\nHTTP:", "\nLogging:", "\nOptions from elsewhere:",
        "\nCompatibility with vLLM"}) {
    const size_t found = help.out.find(title);
    EXPECT_NE(found, std::string::npos) << title;
    EXPECT_GT(found, at) << title;
    at = found;
  }
  EXPECT_THAT(help.out.substr(at), AllOf(HasSubstr(" trust-remote-code "), HasSubstr(" swap-space"),
                                         HasSubstr(" tensor-parallel-size ")));
  const Outcome all = RunFathom({"serve", "--help-all"});
  EXPECT_EQ(all.status, 0);
  EXPECT_THAT(all.out, HasSubstr("--trust-remote-code: no effect"));
  EXPECT_THAT(all.out, HasSubstr("--tensor-parallel-size: refused (1 is what fathom does)"));
}

TEST(Config, FileVariablesAndCommandLineInTheirOrder) {
  const TempFolder folder;
  const std::string file =
      folder.Write("serve.yaml", "model: " + ProjectPath("models/fathom-nano").string() +
                                     "\nserved_model_name: [from-file, also]\n"
                                     "max-model-len: 1k\nmax-num-seqs: 3\n"
                                     "default-chat-template-kwargs: {thinking: false}\n");
  const Variable length("FATHOM_MAX_MODEL_LEN", "2k");
  const Variable seqs("FATHOM_MAX_NUM_SEQS", "4");
  Server server({"--config", file, "--max-num-seqs", "5"});
  ASSERT_NE(server.port(), 0);
  const Json models = Json::parse(TestClient(server.port()).Ask("GET", "/v1/models").body);
  EXPECT_EQ(models.at("data").at(0).at("id"), "from-file");
  EXPECT_EQ(models.at("data").at(1).at("id"), "also");
  EXPECT_EQ(models.at("data").at(0).at("max_model_len"), 2000);
  const Outcome printed =
      RunFathom({"serve", "--config", file, "--max-num-seqs", "5", "--print-config"});
  EXPECT_THAT(printed.out, HasSubstr("\nmax-num-seqs: 5  # command line\n"));
  EXPECT_THAT(printed.out, HasSubstr("\nmax-model-len: 2k  # FATHOM_MAX_MODEL_LEN\n"));
  EXPECT_THAT(printed.out, HasSubstr("\nserved-model-name: [from-file, also]  # config file\n"));
}

TEST(Config, MistakesInAFileAreNamedWithTheFile) {
  const TempFolder folder;
  const std::string file = folder.Write("serve.yaml", "prot: 1\nport: 99999999\n-: x\n");
  const Outcome outcome = RunFathom({"serve", "--config", file});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr(file + ": prot: unknown option; did you mean --port?"));
  EXPECT_THAT(outcome.err, HasSubstr("port in " + file));
}

TEST(Keys, ComeFromFilesAndVariablesAndAreNeverShown) {
  const TempFolder folder;
  const std::string file = folder.Write("keys", "# comment\nsecret-one\nsecret-two\n");
  const Variable key("VLLM_API_KEY", "secret-three");
  Server server({"--api-key-file", file, "--log-level", "debug"});
  ASSERT_NE(server.port(), 0);
  const auto status = [&](const std::string& sent) {
    return TestClient(server.port())
        .Ask("GET", "/v1/models", {}, "Authorization: Bearer " + sent + "\r\n")
        .status;
  };
  EXPECT_EQ(status("secret-one"), 200);
  EXPECT_EQ(status("secret-two"), 200);
  EXPECT_EQ(status("secret-three"), 200);
  EXPECT_EQ(status("# comment"), 401);
  EXPECT_THAT(server.Stop(), Not(HasSubstr("secret-")));
  const Outcome printed = RunFathom({"serve", "--api-key-file", file, "--print-config"});
  EXPECT_THAT(printed.out, AllOf(HasSubstr("api-key-file: " + file), Not(HasSubstr("secret-"))));
}

TEST(Logs, JsonLinesAndStatistics) {
  Server server({"--log-format", "json", "--log-stats-interval", "0.05"});
  ASSERT_NE(server.port(), 0);
  EXPECT_THAT(Complete(server.port(), {{"ignore_eos", true}}), HasSubstr("\"text\""));
  ASSERT_TRUE(server.program().WaitForError("generation_tokens_per_s"));
  std::istringstream log(server.Stop());
  std::string line;
  bool stats = false;
  for (int i = 0; std::getline(log, line); ++i) {
    const Json json = Json::parse(line, nullptr, false);
    ASSERT_TRUE(json.is_object()) << line;
    for (const char* member : {"time", "level", "message"}) EXPECT_TRUE(json.contains(member));
    EXPECT_THAT(line, Not(HasSubstr("Once upon")));
    if (!json.contains("generation_tokens_per_s")) continue;
    stats = true;
    EXPECT_THAT(json.at("message").get<std::string>(), HasSubstr("Avg generation throughput"));
    EXPECT_TRUE(json.at("running").is_number());
  }
  EXPECT_TRUE(stats);
}

TEST(Logs, LevelsAreTakenFromVllmsVariable) {
  const Variable level("VLLM_LOGGING_LEVEL", "ERROR");
  Server server({"--trust-remote-code"});
  ASSERT_NE(server.port(), 0);
  EXPECT_THAT(server.Stop(), IsEmpty());
}

TEST(Seeds, RequestsWithoutOneFollowFromTheServers) {
  const auto answers = [](const std::string& seed) {
    Server server({"--seed", seed, "--log-level", "off"});
    EXPECT_NE(server.port(), 0);
    std::vector<std::string> texts;
    for (int i = 0; i < 3; ++i) {
      texts.push_back(TextOf(
          Complete(server.port(), {{"temperature", 2}, {"max_tokens", 12}, {"ignore_eos", true}})));
    }
    return texts;
  };
  const std::vector<std::string> first = answers("5");
  EXPECT_EQ(answers("5"), first);
  EXPECT_NE(answers("6"), first);
  EXPECT_NE(first[0], first[1]);
}

TEST(Sampling, DefaultsCanBeGivenToTheServer) {
  const auto greedy = [](const std::vector<std::string>& options) {
    Server server(options);
    EXPECT_NE(server.port(), 0);
    const Json fields = {{"max_tokens", 30}, {"ignore_eos", true}};
    return TextOf(Complete(server.port(), fields)) == TextOf(Complete(server.port(), fields));
  };
  EXPECT_TRUE(greedy({"--override-generation-config", R"({"temperature": 0})"}));
  const TempFolder folder;
  static_cast<void>(folder.Write("generation_config.json", R"({"do_sample": false})"));
  EXPECT_TRUE(greedy({"--generation-config", folder.path().string()}));
  const Outcome outcome = RunFathom({"serve", "--port", "0", "--generation-config", "/no/such"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/no/such/generation_config.json"));
}

TEST(Models, TokenizersAndOverridesAreFound) {
  const std::string nano = ProjectPath("models/fathom-nano").string();
  {
    Server server({nano, "--tokenizer", nano, "--revision", "main", "--hf-overrides",
                   R"({"max_position_embeddings": 2048})"});
    ASSERT_NE(server.port(), 0);
    EXPECT_THAT(TestClient(server.port()).Ask("GET", "/v1/models").body,
                HasSubstr("\"max_model_len\":2048"));
    EXPECT_THAT(server.Stop(), HasSubstr("--revision main: no effect"));
  }
  const Outcome tokenizer = RunFathom({"serve", "--port", "0", "--tokenizer", "/no/such"});
  EXPECT_EQ(tokenizer.status, 1);
  EXPECT_THAT(tokenizer.err, HasSubstr("/no/such"));
  // An id with its revision, in the folder that was named.
  const TempFolder hub;
  const Outcome id = RunFathom({"serve", "--port", "0", "org/name", "--revision", "v2",
                                "--download-dir", hub.path().string()});
  EXPECT_EQ(id.status, 1);
  EXPECT_THAT(id.err, AllOf(HasSubstr("org/name"), HasSubstr(hub.path().string())));
}

}  // namespace
}  // namespace fathom::cli_test
