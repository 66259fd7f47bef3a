#include "cli/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>

#include "cli/config_file.h"

namespace fathom::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Values = std::vector<std::string>;

FlagCatalogue Catalogue() {
  FlagCatalogue catalogue;
  catalogue.Add({"model", FlagKind::kValue, {"m"}});
  catalogue.Add({"port", FlagKind::kValue, {}});
  catalogue.Add({"max-model-len", FlagKind::kValue, {}});
  catalogue.Add({"threads", FlagKind::kValue, {"t"}});
  catalogue.Add({"enable-cache", FlagKind::kSwitch, {}});
  catalogue.Add({"names", FlagKind::kList, {}});
  catalogue.Add({"api-key", FlagKind::kRepeated, {}});
  catalogue.Add({"compilation-config", FlagKind::kJson, {}});
  catalogue.Add({"tensor-parallel-size", FlagKind::kValue, {}});
  catalogue.Add({"optimization-level", FlagKind::kValue, {}});
  catalogue.Add({"config", FlagKind::kValue, {}});
  catalogue.Add({"print-config", FlagKind::kSwitch, {}});
  return catalogue;
}

Layer Line(const Values& arguments) {
  Values problems;
  Layer layer = ReadCommandLine(Catalogue(), arguments, &problems);
  EXPECT_THAT(problems, IsEmpty());
  return layer;
}

Values Problems(const Values& arguments) {
  Values problems;
  (void)ReadCommandLine(Catalogue(), arguments, &problems);
  return problems;
}

TEST(CommandLine, FlagsAreReadInEverySpelling) {
  EXPECT_EQ(Line({"--max-model-len", "-1"}), (Layer{{"max-model-len", {"-1"}}}));
  EXPECT_EQ(Line({"--max_model_len=8K"}), (Layer{{"max-model-len", {"8K"}}}));
  EXPECT_EQ(Line({"-tp", "2"}), (Layer{{"tensor-parallel-size", {"2"}}}));
  EXPECT_EQ(Line({"-tp=2"}), (Layer{{"tensor-parallel-size", {"2"}}}));
  EXPECT_EQ(Line({"-t4", "-O3"}), (Layer{{"threads", {"4"}}, {"optimization-level", {"3"}}}));
  EXPECT_EQ(Line({"-m", "x"}), (Layer{{"model", {"x"}}}));
  EXPECT_EQ(Line({"x", "--port", "1"}), (Layer{{"model", {"x"}}, {"port", {"1"}}}));
  EXPECT_EQ(Line({"--port", "1", "--", "--x"}), (Layer{{"port", {"1"}}, {"model", {"--x"}}}));
  EXPECT_EQ(Line({"--enable_cache"}), (Layer{{"enable-cache", {"true"}}}));
  EXPECT_EQ(Line({"--no-enable-cache"}), (Layer{{"enable-cache", {"false"}}}));
  EXPECT_EQ(Line({"--enable-cache=False"}), (Layer{{"enable-cache", {"false"}}}));
  // A value is whatever comes next, also an empty one.
  EXPECT_EQ(Line({"--api-key", "--port"}), (Layer{{"api-key", {"--port"}}}));
  EXPECT_EQ(Line({"--port="}), (Layer{{"port", {""}}}));
}

TEST(CommandLine, LaterWinsAndListsGrow) {
  EXPECT_EQ(Line({"--port", "1", "--port", "2"}), (Layer{{"port", {"2"}}}));
  EXPECT_EQ(Line({"--enable-cache", "--no-enable-cache"}), (Layer{{"enable-cache", {"false"}}}));
  EXPECT_EQ(Line({"--names", "a", "b", "--names=c"}), (Layer{{"names", {"a", "b", "c"}}}));
  EXPECT_EQ(Line({"--names", R"(["a", "b"])"}), (Layer{{"names", {"a", "b"}}}));
  // One value each: what follows is the model.
  EXPECT_EQ(Line({"--api-key", "k", "dir"}), (Layer{{"api-key", {"k"}}, {"model", {"dir"}}}));
}

TEST(CommandLine, DottedKeysBuildAnObject) {
  const auto object = [](const Values& arguments) {
    return Line(arguments).at("compilation-config").at(0);
  };
  EXPECT_EQ(object({"--compilation_config.use_cudagraph=True"}), R"({"use_cudagraph":true})");
  EXPECT_EQ(object({"--compilation-config.use-cudagraph", "false"}), R"({"use_cudagraph":false})");
  EXPECT_EQ(object({"-cc.mode", "3", "-cc.mode=0"}), R"({"mode":0})");
  EXPECT_EQ(object({"-cc", R"({"a": 1, "b": 2})", "-cc.b", "x y"}), R"({"a":1,"b":"x y"})");
  EXPECT_EQ(object({"-cc.a.b.c", "1.5", "-cc.a.d=None"}), R"({"a":{"b":{"c":1.5},"d":null}})");
  EXPECT_EQ(object({"-cc.ops+", "all", "-cc.ops+=x,2", "-cc.ops+", "[3]"}),
            R"({"ops":["all","x",2,3]})");
  EXPECT_EQ(object({"-cc.a.b", "1", "-cc", R"({"c": 2})"}), R"({"c": 2})");
}

TEST(CommandLine, EveryProblemIsTold) {
  const Values problems =
      Problems({"--prot", "1", "a", "{b:", "--port.x=1", "--enable-cache=maybe",
                "--compilation-config..=1", "-zz", "--mm-limit", "3", "--no-port", "--names"});
  EXPECT_THAT(problems,
              ElementsAre("unknown option --prot; did you mean --port?",
                          AllOf(HasSubstr("unexpected argument '{b:'"), HasSubstr("quotes")),
                          HasSubstr("--port: takes no keys"),
                          HasSubstr("--enable-cache=maybe: expected true or false"),
                          HasSubstr("a key is empty"), "unknown option -zz",
                          HasSubstr("--mm-limit: refused"), HasSubstr("unknown option --no-port"),
                          "--names: a value is missing"));
  EXPECT_THAT(Problems({"a", "--model", "b"}), ElementsAre(HasSubstr("twice")));
  EXPECT_THAT(Problems({"--model", "b", "a"}), ElementsAre(HasSubstr("twice")));
  EXPECT_THAT(Problems({"--no-enable-cash"}), ElementsAre(HasSubstr("--no-enable-cache?")));
}

TEST(CommandLine, HostileValuesAreRefusedOrTaken) {
  const std::string deep(200'000, '[');
  EXPECT_THAT(Problems({"-cc.a", deep}), ElementsAre(HasSubstr("too deep")));
  EXPECT_THAT(Problems({"-cc", deep}), ElementsAre(HasSubstr("too deep")));
  std::string path = "-cc.a";
  for (int i = 0; i < 20; ++i) path += ".a";
  EXPECT_THAT(Problems({path, "1"}), ElementsAre(HasSubstr("too many keys")));
  EXPECT_THAT(Problems({"-cc", "{", "-cc.a", "1"}), ElementsAre(HasSubstr("broken")));
  EXPECT_EQ(Problems({"--" + std::string(100'000, 'x')}).size(), 1u);
  EXPECT_EQ(Line({"-cc.a", "\xff"}).at("compilation-config").at(0), "{\"a\":\"\xef\xbf\xbd\"}");
}

Layer File(const std::string& text, Values* problems) {
  return ReadConfigText(Catalogue(), text, "f.yaml", problems);
}

TEST(ConfigFile, KeysAreFlagsAndValuesHaveTheirShapes) {
  Values problems;
  const Layer layer = File(
      "# comment\n"
      "port: 8001\n"
      "max_model_len: 8K\n"
      "no-enable-cache: true\n"
      "names: [a, 'b c']\n"
      "api-key: k\n"
      "threads:\n"
      "compilation-config:\n"
      "  cudagraph_mode: FULL\n"
      "  custom_ops: [all, '1', 2, true]\n"
      "  pass_config: {x: null, y: 0.5}\n",
      &problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(
      layer,
      (Layer{
          {"port", {"8001"}},
          {"max-model-len", {"8K"}},
          {"enable-cache", {"false"}},
          {"names", {"a", "b c"}},
          {"api-key", {"k"}},
          {"compilation-config",
           {R"({"cudagraph_mode":"FULL","custom_ops":["all","1",2,true],"pass_config":{"x":null,"y":0.5}})"}}}));
  EXPECT_EQ(File("compilation-config.mode: 0", &problems),
            (Layer{{"compilation-config", {R"({"mode":0})"}}}));
  EXPECT_EQ(File("compilation-config: '{\"mode\": 0}'", &problems),
            (Layer{{"compilation-config", {R"({"mode": 0})"}}}));
  EXPECT_EQ(File("", &problems), Layer{});
  EXPECT_THAT(problems, IsEmpty());
}

TEST(ConfigFile, EveryProblemIsToldWithItsKey) {
  Values problems;
  (void)File(
      "prot: 1\nport: [1]\nnames: {a: b}\nenable-cache: maybe\nconfig: x\n"
      "threads: 1\nthreads: 2\nport.x: 1\n",
      &problems);
  EXPECT_THAT(problems,
              ElementsAre("f.yaml: prot: unknown option; did you mean --port?",
                          "f.yaml: port: expected one value",
                          HasSubstr("names: expected a value or a list"),
                          HasSubstr("enable-cache: expected true or false"), HasSubstr("config:"),
                          HasSubstr("threads: given twice"), HasSubstr("port.x: ")));
}

TEST(ConfigFile, HostileTextsAreErrors) {
  std::string laughs = "compilation-config:\n  a: &a [1,1,1,1,1,1,1,1,1]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    const std::string before(1, static_cast<char>(c - 1));
    laughs += std::string("  ") + c + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) laughs += (i == 0 ? "*" : ", *") + before;
    laughs += "]\n";
  }
  std::string indented = "compilation-config:\n";
  for (size_t i = 1; i < 900; ++i) indented += std::string(i, ' ') + "a:\n";
  for (const std::string& text :
       {laughs, indented, std::string("port: [") + std::string(200'000, '['),
        std::string(200'000, '{'), std::string("- a"), std::string("port: \"x"),
        std::string("{a: b}: c"), std::string("\tport: 1"), std::string("port: *none"),
        std::string("just words"), std::string((size_t{1} << 20) + 1, ' ')}) {
    Values problems;
    (void)File(text, &problems);
    EXPECT_FALSE(problems.empty()) << text.substr(0, 50);
  }
}

class ConfigPath {
 public:
  explicit ConfigPath(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("fathom_settings_" + std::to_string(::getpid()) + ".yaml")) {
    std::ofstream(path_) << text;
  }
  ~ConfigPath() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Environment, VariablesAreFlagsAndEmptyOnesAreNot) {
  const Settings settings = ReadSettings(Catalogue(), {},
                                         {{"FATHOM_MAX_MODEL_LEN", "8K"},
                                          {"FATHOM_ENABLE_CACHE", "0"},
                                          {"FATHOM_NAMES", R"(["a", "b"])"},
                                          {"FATHOM_API_KEY", "one"},
                                          {"VLLM_API_KEY", "other"},
                                          {"FATHOM_PORT", ""},
                                          {"FATHOM_MAX_MODEL_LENGTH", "1"},
                                          {"VLLM_RPC_TIMEOUT", "600000"},
                                          {"PATH", "/bin"}});
  EXPECT_THAT(settings.problems, IsEmpty());
  EXPECT_EQ(settings.values.size(), 4u);
  EXPECT_EQ(settings.values.at("max-model-len").values, Values{"8K"});
  EXPECT_EQ(settings.values.at("enable-cache").values, Values{"false"});
  EXPECT_THAT(settings.values.at("names").values, ElementsAre("a", "b"));
  EXPECT_EQ(settings.values.at("api-key").values, Values{"one"});
  EXPECT_EQ(settings.values.at("api-key").source, "FATHOM_API_KEY");
  EXPECT_THAT(settings.notes, ElementsAre(HasSubstr("did you mean --max-model-len?"),
                                          HasSubstr("VLLM_RPC_TIMEOUT")));
}

TEST(Environment, APortThatKubernetesSetsIsNotUsed) {
  const Settings settings = ReadSettings(Catalogue(), {}, {{"FATHOM_PORT", "tcp://10.0.0.1:8000"}});
  EXPECT_THAT(settings.values, IsEmpty());
  EXPECT_THAT(settings.warnings, ElementsAre(HasSubstr("FATHOM_PORT")));
}

TEST(Environment, BadSwitchesAreProblems) {
  const Settings settings = ReadSettings(Catalogue(), {}, {{"FATHOM_ENABLE_CACHE", "perhaps"}});
  EXPECT_THAT(settings.problems, ElementsAre(HasSubstr("FATHOM_ENABLE_CACHE=perhaps")));
}

TEST(Settings, AFileThatIsNotThereIsAProblem) {
  const Settings settings = ReadSettings(Catalogue(), Values{"--config", "/no/such.yaml"}, {});
  EXPECT_THAT(settings.problems, ElementsAre(HasSubstr("/no/such.yaml: No such file")));
}

// Random assignments in all places at once, against a model that only knows the order.
TEST(Settings, CommandLineThenOwnVariablesThenVllmsThenTheFile) {
  std::mt19937 random(7);
  const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  struct Flag {
    std::string name, fathom, vllm;
    bool is_switch = false;
  };
  const std::vector<Flag> flags = {
      {"port", "FATHOM_PORT", ""},
      {"max-model-len", "FATHOM_MAX_MODEL_LEN", ""},
      {"api-key", "FATHOM_API_KEY", "VLLM_API_KEY"},
      {"log-level", "FATHOM_LOG_LEVEL", "VLLM_LOGGING_LEVEL"},
      {"enable-dev-endpoints", "FATHOM_ENABLE_DEV_ENDPOINTS", "VLLM_SERVER_DEV_MODE", true},
      {"enable-cache", "FATHOM_ENABLE_CACHE", "", true}};
  FlagCatalogue catalogue = Catalogue();
  catalogue.Add({"log-level", FlagKind::kValue, {}});
  catalogue.Add({"enable-dev-endpoints", FlagKind::kSwitch, {}});
  for (int round = 0; round < 2000; ++round) {
    std::string file;
    Environment environment;
    Values arguments;
    std::map<std::string, std::pair<std::string, Origin>> want;
    for (const Flag& flag : flags) {
      const auto value = [&]() -> std::string {
        return flag.is_switch ? (one_of(2) == 0 ? "true" : "false")
                              : "v" + std::to_string(one_of(100));
      };
      std::string spelled = flag.name;
      if (one_of(2) == 0) std::replace(spelled.begin(), spelled.end(), '-', '_');
      if (one_of(3) == 0) {
        want[flag.name] = {value(), Origin::kConfigFile};
        file += spelled + ": " + want[flag.name].first + "\n";
      }
      if (!flag.vllm.empty() && one_of(3) == 0) {
        want[flag.name] = {value(), Origin::kVllmVariable};
        environment[flag.vllm] = want[flag.name].first;
      }
      if (one_of(3) == 0) {
        want[flag.name] = {value(), Origin::kFathomVariable};
        environment[flag.fathom] = want[flag.name].first;
      }
      if (one_of(3) == 0) {
        want[flag.name] = {value(), Origin::kCommandLine};
        const std::string& text = want[flag.name].first;
        if (!flag.is_switch && one_of(2) == 0) {
          arguments.insert(arguments.end(), {"--" + spelled, text});
        } else if (flag.is_switch && one_of(2) == 0) {
          arguments.push_back((text == "true" ? "--" : "--no-") + spelled);
        } else {
          arguments.push_back("--" + spelled + "=" + text);
        }
      }
    }
    const ConfigPath path(file);
    if (one_of(2) == 0) {
      environment["FATHOM_CONFIG"] = path.path();
    } else {
      arguments.insert(arguments.begin(), "--config=" + path.path());
    }
    const Settings settings = ReadSettings(catalogue, arguments, environment);
    ASSERT_THAT(settings.problems, IsEmpty());
    std::map<std::string, std::pair<std::string, Origin>> got;
    for (const auto& [name, setting] : settings.values) {
      if (name != "config") got[name] = {setting.values.at(0), setting.origin};
    }
    ASSERT_EQ(got, want) << "round " << round << "\n" << file;
  }
}

}  // namespace
}  // namespace fathom::cli
