// What every command has in common: help, mistakes in the arguments, models that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <sstream>

#include "tests/cli/program.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kUsage = 2;
constexpr int kFailed = 1;

void ExpectMistake(const std::vector<std::string>& arguments, const std::string& message) {
  const Outcome outcome = RunFathom(arguments);
  EXPECT_EQ(outcome.status, kUsage) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(message));
  EXPECT_THAT(outcome.out, IsEmpty());
}

void ExpectFailure(const std::vector<std::string>& arguments, const std::string& message) {
  const Outcome outcome = RunFathom(arguments);
  EXPECT_EQ(outcome.status, kFailed) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("fathom: "));
  EXPECT_THAT(outcome.err, HasSubstr(message));
  EXPECT_THAT(outcome.out, IsEmpty());
}

struct Command {
  const char* name;
  std::vector<const char*> options;
};

const std::vector<const char*> kModelOptions = {"--model",
                                                "--backend",
                                                "--threads",
                                                "--max-model-len",
                                                "--max-num-batched-tokens",
                                                "--compilation-config",
                                                "--enforce-eager",
                                                "--cudagraph-capture-sizes",
                                                "--max-cudagraph-capture-size",
                                                "--cuda-device",
                                                "--serial-streams"};
const std::vector<const char*> kSamplingOptions = {"--temperature",
                                                   "--top-p",
                                                   "--top-k",
                                                   "--min-p",
                                                   "--presence-penalty",
                                                   "--frequency-penalty",
                                                   "--repetition-penalty",
                                                   "--seed"};

std::vector<Command> Commands() {
  std::vector<Command> commands = {
      {"generate",
       {"--file", "--messages", "--raw", "--system", "--thinking", "--max-tokens", "--min-tokens",
        "--ignore-eos", "--stop", "--logprobs", "--json", "--quiet"}},
      {"chat", {"--system", "--thinking", "--hide-reasoning", "--max-tokens"}},
      {"serve",
       {"--host", "--port", "--served-model-name", "--model-alias", "--api-key",
        "--default-chat-template-kwargs", "--reasoning-field", "--max-logprobs",
        "--enable-force-include-usage", "--max-body-bytes", "--shutdown-timeout",
        "--engine-watchdog-timeout"}},
      {"logits", {"--tokens", "--out", "--mode"}},
      {"tokenize", {"--file", "--decode", "--pieces", "--ignore-added-tokens", "--model"}},
      {"template",
       {"--ids", "--thinking", "--reasoning-effort-profile", "--official-user-content", "--model"}},
      {"parse",
       {"--tools", "--start", "--tool-choice", "--no-parallel-tool-calls", "--finish", "--stream",
        "--chunk"}}};
  for (size_t i = 0; i < 4; ++i) {
    commands[i].options.insert(commands[i].options.end(), kModelOptions.begin(),
                               kModelOptions.end());
  }
  for (size_t i = 0; i < 2; ++i) {
    commands[i].options.insert(commands[i].options.end(), kSamplingOptions.begin(),
                               kSamplingOptions.end());
  }
  return commands;
}

TEST(Help, BenchmarksAreCommandsOfACommand) {
  const Outcome all = RunFathom({"bench", "--help"});
  EXPECT_EQ(all.status, 0);
  const std::vector<std::pair<std::string, std::string>> benchmarks = {
      {"model", "--prefill"},    {"ops", "--shapes"},     {"step", "--sequences"},
      {"turns", "--turns"},      {"context", "--depths"}, {"streams", "--streams"},
      {"cache", "--long-tokens"}};
  for (const auto& [name, option] : benchmarks) {
    EXPECT_THAT(all.out, HasSubstr("\n  " + name));
    const Outcome help = RunFathom({"bench", name, "--help"});
    EXPECT_EQ(help.status, 0) << help.err;
    EXPECT_THAT(help.out, HasSubstr(option));
    EXPECT_THAT(help.out, HasSubstr("--log-level"));
    ExpectMistake({"bench", option, "3"}, "fathom bench " + name + " " + option);
  }
}

TEST(Help, EachCommandExplainsEachOption) {
  for (const Command& command : Commands()) {
    const Outcome help = RunFathom({command.name, "--help"});
    EXPECT_EQ(help.status, 0) << command.name;
    EXPECT_THAT(help.err, IsEmpty());
    for (const char* option : command.options) {
      EXPECT_THAT(help.out, HasSubstr(option)) << command.name;
    }
    EXPECT_THAT(help.out, HasSubstr("--log-level")) << command.name;
    // Columns: names of at most 30 letters, then text; after longer names the text has its own
    // line.
    std::istringstream lines(help.out);
    std::string line, bare;
    while (std::getline(lines, line)) {
      const bool indented = line.rfind(std::string(30, ' '), 0) == 0 && line.size() > 30;
      EXPECT_TRUE(bare.empty() || indented) << bare << " has no text";
      const bool names_option = line.rfind("  -", 0) == 0;
      bare = names_option && (line.size() <= 30 || line[29] != ' ') ? line : "";
    }
  }
}

TEST(Help, TheProgramListsItsCommands) {
  const Outcome help = RunFathom({"--help"});
  EXPECT_EQ(help.status, 0);
  const Outcome all = RunFathom({"--help-all"});
  EXPECT_EQ(all.status, 0);
  for (const Command& command : Commands()) {
    EXPECT_THAT(help.out, HasSubstr(command.name));
    for (const char* option : command.options) EXPECT_THAT(all.out, HasSubstr(option));
  }
  const Outcome version = RunFathom({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_THAT(version.out, HasSubstr("fathom "));
}

TEST(Arguments, UnknownNamesGetTheClosestKnownOne) {
  ExpectMistake({"generate", "--temprature", "1", "hi"},
                "--temprature; did you mean --temperature?");
  ExpectMistake({"serve", "--max_modell_len", "8"}, "did you mean --max-model-len?");
  ExpectMistake({"generat", "hi"}, "unknown command generat; did you mean generate?");
  ExpectMistake({"tokenize", "--zzzzzzzzzzzzz", "hi"}, "unknown option --zzzzzzzzzzzzz");
  ExpectMistake({"--model", "x", "generate", "hi"}, "--model");
  ExpectMistake({"tokenize", "-z", "hi"}, "-z");
  ExpectMistake({"tokenize", "--" + std::string(100'000, 'x')}, "unknown option");
}

TEST(Arguments, BadAndMissingValuesAreNamed) {
  ExpectMistake({}, "COMMAND");
  ExpectMistake({"generate"}, "a prompt, --file or --messages");
  ExpectMistake({"generate", "hi", "--file", "x"}, "--file");
  ExpectMistake({"generate", "hi", "--max-tokens"}, "--max-tokens");
  ExpectMistake({"generate", "hi", "--max-tokens", "0"}, "--max-tokens");
  ExpectMistake({"generate", "hi", "--top-k", "x"}, "--top-k");
  ExpectMistake({"generate", "hi", "--top-k", "-1"}, "--top-k");
  ExpectMistake({"generate", "hi", "--temperature", "-1"}, "--temperature");
  ExpectMistake({"generate", "hi", "--temperature", "nan"}, "--temperature");
  ExpectMistake({"generate", "hi", "--temperature", "inf"}, "--temperature");
  ExpectMistake({"generate", "hi", "--top-p", "0"}, "--top-p");
  ExpectMistake({"generate", "hi", "--min-p", "1.5"}, "--min-p");
  ExpectMistake({"generate", "hi", "--presence-penalty", "3"}, "--presence-penalty");
  ExpectMistake({"generate", "hi", "--frequency-penalty", ""}, "--frequency-penalty");
  ExpectMistake({"generate", "hi", "--repetition-penalty", "0"}, "--repetition-penalty");
  ExpectMistake({"generate", "hi", "--seed", "99999999999999999999"}, "--seed");
  ExpectMistake({"generate", "hi", "--logprobs", "3"}, "--logprobs");
  ExpectMistake({"generate", "hi", "--thinking", "hard"}, "--thinking");
  ExpectMistake({"generate", "hi", "--backend", "gpu"}, "--backend");
  ExpectMistake({"generate", "hi", "--log-level", "loud"}, "--log-level");
  ExpectMistake({"generate", "hi", "--threads", "0"}, "--threads");
  ExpectMistake({"logits", "--tokens", "x"}, "--out");
  ExpectMistake({"logits", "--tokens", "x", "--out", "y", "--mode", "best"}, "--mode");
  ExpectMistake({"tokenize"}, "text or --file");
  ExpectMistake({"tokenize", "--decode", "--pieces", "[1]"}, "--pieces");
  ExpectMistake({"template", "--reasoning-effort-profile", "x"}, "--reasoning-effort-profile");
  ExpectMistake({"serve", "--port", "65536"}, "--port");
  ExpectMistake({"serve", "--max-body-bytes", "-1"}, "--max-body-bytes");
  ExpectMistake({"serve", "--shutdown-timeout", "-1"}, "--shutdown-timeout");
  ExpectMistake({"serve", "--reasoning-field", "x"}, "--reasoning-field");
  ExpectMistake({"serve", "a", "--model", "b"}, "--model");
  ExpectMistake({"serve", "--model-alias", "={}"}, "--model-alias");
  ExpectMistake({"serve", "--model-alias", "x={"}, "--model-alias");
  ExpectMistake({"serve", "--default-chat-template-kwargs", "{"}, "--default-chat-template-kwargs");
  ExpectMistake({"serve", "--default-chat-template-kwargs", R"({"x": true})"},
                "--default-chat-template-kwargs");
}

// Report R160: what a shell leaves of JSON that was not quoted. --config-json is a stand-in; more
// flags are in flags_test.cc.
TEST(Arguments, JsonWithoutQuotesIsNamed) {
  for (const std::vector<std::string>& value : std::vector<std::vector<std::string>>{
           {"{thinking:false,", "drop_thinking:true}"}, {"{thinking:false}"}}) {
    std::vector<std::string> command = {"serve", "--default-chat-template-kwargs"};
    command.insert(command.end(), value.begin(), value.end());
    ExpectMistake(command, "--default-chat-template-kwargs");
    ExpectMistake(command, "quote");
  }
}

TEST(Arguments, UnderscoresAndEqualsSignsAreAccepted) {
  const std::vector<std::string> plain = {"tokenize", "--ignore-added-tokens", "--file", "-"};
  const std::vector<std::string> other = {"tokenize", "--ignore_added_tokens", "--file=-"};
  const Outcome want = RunFathom(plain, "a b"), got = RunFathom(other, "a b");
  EXPECT_EQ(want.status, 0) << want.err;
  EXPECT_EQ(got.status, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
}

TEST(Arguments, ValuesAreTakenAsTheyAre) {
  // Neither the underscore nor the look of an option matters in a value.
  const Outcome stop = RunFathom(
      {"generate", "--stop", "--a_b", "--stop", "[x]", "--json", "-n", "3", "-t1", "Hello!"});
  EXPECT_EQ(stop.status, 0) << stop.err;
  // An empty value after '=' does not swallow the prompt.
  const Outcome system = RunFathom({"generate", "--system=", "-qn", "3", "Hello!"});
  EXPECT_EQ(system.status, 0) << system.err;
  // Words of the program are text where text is wanted, and so is anything after --.
  EXPECT_EQ(RunFathom({"tokenize", "serve"}).status, 0);
  EXPECT_EQ(RunFathom({"tokenize", "--", "--un_known"}).out,
            RunFathom({"tokenize", "-f", "-"}, "--un_known").out);
}

TEST(Arguments, LengthsTakeSuffixes) {
  const auto context = [](const std::string& value) {
    return RunFathom({"generate", "--max-model-len", value, "--log-level", "off",
                      "--max-num-batched-tokens", "1k", "-qn", "1", "Hello!"});
  };
  for (const char* good : {"64", "1k", "1K", "1m", "1M"}) {
    EXPECT_EQ(context(good).status, 0) << good << context(good).err;
  }
  for (const char* bad :
       {"", "k", "1x", "1kk", "-1k", "0k", "1.5k", "9999999999g", "4G", "0x10", "1 k"}) {
    const Outcome outcome = context(bad);
    EXPECT_EQ(outcome.status, kUsage) << bad;
    EXPECT_THAT(outcome.err, HasSubstr("--max-model-len"));
  }
  ExpectMistake({"generate", "hi", "--max-num-batched-tokens", "65K"}, "--max-num-batched-tokens");
}

TEST(Models, WhatIsNoModelIsSaid) {
  const TempFolder folder;
  const std::string ids = folder.Write("ids.json", "[1]");
  const std::string nowhere = (folder.path() / "none").string();
  const std::string out = (folder.path() / "out").string();
  const std::vector<std::vector<std::string>> commands = {
      {"generate", "hi"},         {"chat"},
      {"serve", "--port", "0"},   {"tokenize", "hi"},
      {"template", "--ids", ids}, {"logits", "--tokens", ids, "--out", out}};
  for (std::vector<std::string> command : commands) {
    command.push_back("--model");
    command.push_back(nowhere);
    ExpectFailure(command, nowhere + "': no such directory");
    if (command.front() == "template") continue;  // reads ids.json first, which is no request
    command.back() = folder.path().string();
    ExpectFailure(command, command.front() == "tokenize" ? "tokenizer.json" : "config.json");
  }
}

// The bundled model with one file replaced.
class DamagedModel {
 public:
  DamagedModel(const std::string& file, std::string_view content) {
    for (const auto& entry :
         std::filesystem::directory_iterator(ProjectPath("models/fathom-nano"))) {
      std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                      folder_.path() / entry.path().filename());
    }
    std::filesystem::remove(folder_.path() / file);
    static_cast<void>(folder_.Write(file, content));
  }
  [[nodiscard]] std::string path() const { return folder_.path().string(); }

 private:
  TempFolder folder_;
};

TEST(Models, DamagedFilesAreErrorsThatNameTheFile) {
  const std::string weights = "model-00001-of-00002.safetensors";
  const std::string good = ReadFile(ProjectPath("models/fathom-nano/" + weights));
  const std::string deep = std::string(200'000, '[');
  const std::vector<std::pair<std::string, std::string>> damages = {
      {"config.json", ""},
      {"config.json", "{"},
      {"config.json", "[]"},
      {"config.json", deep},
      {"config.json", "{\"model_type\": \"llama\"}"},
      {"tokenizer.json", ""},
      {"tokenizer.json", "{\"model\": {}}"},
      {"tokenizer.json", deep},
      {"generation_config.json", "{\"temperature\": \"hot\"}"},
      {"generation_config.json", deep},
      {"model.safetensors.index.json", "{}"},
      {"model.safetensors.index.json", deep},
      {weights, ""},
      {weights, good.substr(0, 100)},
      {weights, good.substr(0, good.size() / 2)},
      {weights, std::string(8, '\xff') + good.substr(8)},
  };
  for (const auto& [file, content] : damages) {
    SCOPED_TRACE(file + ": " + content.substr(0, 20));
    const DamagedModel model(file, content);
    ExpectFailure({"generate", "hi", "--model", model.path()}, file.substr(0, file.find('-')));
  }
}

TEST(Output, AFullDiskIsAFailure) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "SKIPPED: no /dev/full";
  // A program's standard output is set by the shell.
  const int status = std::system(FATHOM_BINARY_DIR "/fathom tokenize hi >/dev/full 2>/dev/null");
  EXPECT_EQ(WEXITSTATUS(status), kFailed);
}

TEST(Output, AReaderThatLeavesEndsTheAnswer) {
  Program program({"generate", "--raw", "--ignore-eos", "-n", "100000", "--max-model-len", "1m",
                   "Once upon a time"});
  ASSERT_TRUE(program.WaitForOutput(" "));
  program.CloseOutput();
  EXPECT_NE(program.Finish().status, 0);
}

TEST(Input, DirectoriesAndMissingFilesAreErrors) {
  const TempFolder folder;
  const std::string directory = folder.path().string();
  ExpectFailure({"tokenize", "--file", directory}, directory + ": Is a directory");
  ExpectFailure({"generate", "--file", directory}, directory + ": Is a directory");
  ExpectFailure({"template", directory}, directory + ": Is a directory");
  ExpectFailure({"generate", "--messages", directory + "/none"}, "No such file");
}

}  // namespace
}  // namespace fathom::cli_test
