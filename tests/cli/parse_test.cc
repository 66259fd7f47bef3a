// fathom parse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"
#include "tests/test_data.h"

namespace fathom::cli_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string Out(const std::vector<std::string>& arguments, std::string_view input) {
  const Outcome outcome = RunFathom(arguments, input);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return outcome.out;
}

// The deltas of a stream, joined, in the form of the object that is printed without --stream.
Json Joined(const std::string& lines) {
  Json joined = {{"reasoning", nullptr}, {"content", nullptr}, {"tool_calls", Json::array()}};
  const auto append = [&joined](const char* key, const Json& line) {
    if (!line.contains(key)) return;
    const std::string before = joined[key].is_null() ? "" : joined[key].get<std::string>();
    joined[key] = before + line[key].get<std::string>();
  };
  std::istringstream in(lines);
  for (std::string text; std::getline(in, text);) {
    const Json line = Json::parse(text);
    append("reasoning", line);
    append("content", line);
    if (line.contains("finish_reason")) joined["finish_reason"] = line["finish_reason"];
    if (!line.contains("tool_calls")) continue;
    const Json& call = line["tool_calls"][0];
    const Json& function = call["function"];
    if (function.contains("name")) {
      EXPECT_EQ(call["index"], joined["tool_calls"].size());
      joined["tool_calls"].push_back({{"name", function["name"]}, {"arguments", ""}});
    }
    Json& arguments = joined["tool_calls"].back()["arguments"];
    arguments = arguments.get<std::string>() + function["arguments"].get<std::string>();
  }
  return joined;
}

TEST(Parse, PrintsTheVectorsWholeAndStreamed) {
  const Json vectors = Json::parse(ReadFile(ProjectPath("tests/data/vectors/chat/parse.json")));
  const TempFolder folder;
  int count = 0;
  for (const Json& test : vectors["cases"]) {
    // Every group and every option; all of them are the parser's own test.
    const std::string group = test["group"];
    if (group != "option" && group != "truncated" && count % 6 != 0) {
      ++count;
      continue;
    }
    ++count;
    SCOPED_TRACE(test["id"]);
    const std::string text = folder.Write("text", test["text"].get<std::string>());
    std::vector<std::string> arguments = {"parse",       text,       "--start",
                                          test["start"], "--finish", test["engine_finish"]};
    if (test.contains("tools")) {
      const std::string list = test["tools"];
      arguments.insert(arguments.end(),
                       {"--tools", folder.Write(list, vectors["tool_lists"][list].dump())});
    }
    if (test.contains("tool_choice")) {
      const Json& choice = test["tool_choice"];
      const Json& word = choice.is_string() ? choice : choice["function"]["name"];
      arguments.insert(arguments.end(), {"--tool-choice", word.get<std::string>()});
    }
    if (test.value("parallel_tool_calls", true) == false) {
      arguments.emplace_back("--no-parallel-tool-calls");
    }
    Json whole = Json::parse(Out(arguments, ""));
    whole.erase("repairs");
    EXPECT_EQ(whole, test["expect"]);
    arguments.emplace_back("--stream");
    EXPECT_EQ(Joined(Out(arguments, "")), test["expect"]);
    arguments.insert(arguments.end(), {"--chunk", "1"});
    EXPECT_EQ(Joined(Out(arguments, "")), test["expect"]);
  }
  EXPECT_EQ(count, 175);
}

TEST(Parse, StreamsALineOrSomeCharactersAtATime) {
  const std::string text = "r\né</think>ab\ncd";
  EXPECT_EQ(Out({"parse", "--start", "reasoning", "--stream"}, text),
            "{\"reasoning\":\"r\\n\"}\n{\"reasoning\":\"é\"}\n{\"content\":\"ab\\n\"}\n"
            "{\"content\":\"cd\"}\n{\"finish_reason\":\"stop\"}\n");
  EXPECT_EQ(Out({"parse", "--stream", "--chunk", "2"}, "aé中b"),
            "{\"content\":\"aé\"}\n{\"content\":\"中b\"}\n{\"finish_reason\":\"stop\"}\n");
  EXPECT_EQ(Out({"parse", "--stream"}, ""), "{\"finish_reason\":\"stop\"}\n");
}

TEST(Parse, NamesWhatWasMalformed) {
  const TempFolder folder;
  const std::string tools =
      folder.Write("tools", R"([{"type": "function", "function": {"name": "f"}}])");
  const Json parsed = Json::parse(
      Out({"parse", "--tools", tools}, "<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>"));
  EXPECT_EQ(parsed["repairs"], Json({{"wrapper_missing", 1}}));
}

TEST(Parse, BadArgumentsAreErrors) {
  const auto fails = [](const std::vector<std::string>& arguments, int status,
                        const std::string& message) {
    const Outcome outcome = RunFathom(arguments);
    EXPECT_EQ(outcome.status, status);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
  };
  const TempFolder folder;
  const std::string tools =
      folder.Write("tools", R"([{"type": "function", "function": {"name": "f"}}])");
  fails({"parse", "no such file"}, 1, "no such file");
  fails({"parse", "--tools", folder.Write("object", "{}")}, 1, "tools");
  fails({"parse", "--tools", folder.Write("nameless", R"([{"type": "function"}])")}, 1, "function");
  fails({"parse", "--tools", folder.Write("broken", "[")}, 1, "JSON");
  fails({"parse", "--tools", tools, "--tool-choice", "g"}, 1, "a tool of --tools, not g");
  fails({"parse", "--tool-choice", "required"}, 1, "needs --tools");
  fails({"parse", "--start", "middle"}, 2, "--start");
  fails({"parse", "--finish", "tool_calls"}, 2, "--finish");
  fails({"parse", "--chunk", "5"}, 2, "--stream");
  fails({"parse", "--stream", "--chunk", "0"}, 2, "--chunk");
}

}  // namespace
}  // namespace fathom::cli_test
