#include "replay/replay_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "replay/test_replay.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;
using namespace replay_testing;  // NOLINT(google-build-using-namespace)

std::string Text(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  return tokenizer.Decode(ids, SpecialTokens::kKeep);
}

TEST(ReplayScript, TextBecomesTheTokensThatAModelWouldGive) {
  Tokenizer tokenizer = Nano();
  const ReplayScript script =
      Script(R"([{"text": "Hm.</think>Yes, <｜DSML｜tool_calls>"}])", tokenizer);
  const std::vector<TokenId>& ids = script.answers.at(0).tokens;
  EXPECT_EQ(Text(tokenizer, ids), "Hm.</think>Yes, <｜DSML｜tool_calls>");
  const auto mark = tokenizer.FindAddedToken("</think>");
  ASSERT_TRUE(mark.has_value());
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *mark), 1);
  EXPECT_EQ(script.answers[0].times, 1);
  EXPECT_EQ(script.answers[0].finish, FinishReason::kStop);
}

TEST(ReplayScript, EachPieceOfTokensIsOneToken) {
  Tokenizer tokenizer = Nano();
  const int vocab = tokenizer.vocab_size();
  const ReplayScript script = Script(
      R"([{"tokens": ["one", " antidisestablishment", "</think>", {"hex": "e4bd"}, {"hex": "A0"},
                      " antidisestablishment", 75]}])",
      tokenizer);
  const std::vector<TokenId>& ids = script.answers.at(0).tokens;
  ASSERT_EQ(ids.size(), 7u);
  EXPECT_EQ(Text(tokenizer, ids), "one antidisestablishment</think>你 antidisestablishment" +
                                      std::string(tokenizer.TokenBytes(75)));
  EXPECT_EQ(ids[2], *tokenizer.FindAddedToken("</think>")) << "what the vocabulary has is used";
  EXPECT_GE(ids[1], vocab);
  EXPECT_EQ(ids[1], ids[5]);
}

TEST(ReplayScript, MessagesAreSpelledAsTheTemplateSpellsThem) {
  Tokenizer tokenizer = Nano();
  const ReplayScript script = Script(
      R"([{"reasoning": "Look it up.", "content": "One moment.", "tool_calls":
           [{"name": "search", "arguments": {"query": "</think> fish", "limit": 3}}]}])",
      tokenizer);
  const ReplayAnswer& answer = script.answers.at(0);
  EXPECT_EQ(Text(tokenizer, answer.reasoning), "Look it up.</think>");
  EXPECT_EQ(Text(tokenizer, answer.tokens),
            "One moment.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"search\">\n"
            "<｜DSML｜parameter name=\"query\" string=\"true\"></think> fish</｜DSML｜parameter>\n"
            "<｜DSML｜parameter name=\"limit\" string=\"false\">3</｜DSML｜parameter>\n"
            "</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
  const auto mark = *tokenizer.FindAddedToken("</think>");
  EXPECT_EQ(std::count(answer.tokens.begin(), answer.tokens.end(), mark), 0)
      << "an argument's text is no mark";
  EXPECT_EQ(Text(tokenizer, Script(R"([{"content": "x"}])", tokenizer).answers.at(0).reasoning),
            "</think>")
      << "content is content where the prompt asks for reasoning";
  EXPECT_TRUE(Script(R"([{"text": "x"}])", tokenizer).answers.at(0).reasoning.empty());
}

TEST(ReplayScript, DefaultsStandForWhatAnAnswerLeavesOut) {
  Tokenizer tokenizer = Nano();
  const ReplayScript script = Script(
      R"({"repeat": "cycle", "defaults": {"token_delay_ms": 2.5, "finish": "length"},
          "answers": [{"text": "a"}, {"text": "b", "token_delay_ms": 0, "times": 3,
                       "when": {"contains": "x", "lacks": ["y", "z"], "ends_with": "q"}}]})",
      tokenizer);
  EXPECT_EQ(script.repeat, ReplayRepeat::kCycle);
  EXPECT_EQ(script.answers.at(0).token_delay, std::chrono::microseconds(2500));
  EXPECT_EQ(script.answers.at(0).finish, FinishReason::kLength);
  const ReplayAnswer& second = script.answers.at(1);
  EXPECT_EQ(second.token_delay.count(), 0);
  EXPECT_EQ(second.times, 3);
  EXPECT_TRUE(second.when->Holds("..x..q"));
  EXPECT_FALSE(second.when->Holds("..x.."));
  EXPECT_FALSE(second.when->Holds(".xzq"));
  EXPECT_FALSE(second.when->Holds("q"));
}

TEST(ReplayScript, LinesAreAnswers) {
  Tokenizer tokenizer = Nano();
  auto script = ParseReplayScript("{\"text\": \"a\"}\n\n  \r\n{\"text\": \"b\", \"times\": 2}",
                                  "x.jsonl", tokenizer);
  ASSERT_TRUE(script.ok()) << script.status().ToString();
  ASSERT_EQ(script->answers.size(), 2u);
  EXPECT_EQ(script->answers[1].name, "line 4");
  script = ParseReplayScript("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", "x.jsonl", tokenizer);
  ASSERT_FALSE(script.ok());
  EXPECT_THAT(script.status().message(), HasSubstr("x.jsonl:2: needs exactly one of text"));
}

TEST(ReplayScript, MistakesAreNamedWithTheirPlace) {
  Tokenizer tokenizer = Nano();
  const auto message = [&tokenizer](std::string_view text) {
    const auto script = ParseReplayScript(text, "f.json", tokenizer);
    EXPECT_FALSE(script.ok()) << text;
    return script.status().message();
  };
  const auto answer = [&message](const std::string& members) {
    return message("{\"answers\": [{\"text\": \"ok\"}, {" + members + "}]}");
  };
  EXPECT_THAT(message(""), HasSubstr("f.json: invalid JSON at byte 0"));
  EXPECT_THAT(message("[{\"text\": 1}"), HasSubstr("invalid JSON at byte"));
  EXPECT_THAT(message("[]"), HasSubstr("no answers"));
  EXPECT_THAT(message("7"), HasSubstr("expected an object"));
  EXPECT_THAT(message("{}"), HasSubstr("expected a list of answers"));
  EXPECT_THAT(message("{\"answers\": 3}"), HasSubstr("expected a list of answers"));
  EXPECT_THAT(message("{\"answers\": [], \"repeats\": 1}"), HasSubstr("unknown field 'repeats'"));
  EXPECT_THAT(message("{\"answers\": [{\"text\": \"\"}], \"repeat\": \"twice\"}"),
              HasSubstr("f.json: file.repeat: 'twice' is none of last, cycle, refuse"));
  EXPECT_THAT(message("{\"defaults\": {\"text\": \"x\"}, \"answers\": [{\"text\": \"x\"}]}"),
              HasSubstr("defaults: unknown field 'text'"));
  EXPECT_THAT(message("{\"defaults\": 3, \"answers\": [{\"text\": \"x\"}]}"),
              HasSubstr("defaults: expected an object"));
  EXPECT_THAT(message("[3]"), HasSubstr("answers[0]: expected an object, found"));
  EXPECT_THAT(answer(""), HasSubstr("answers[1]: needs exactly one of text"));
  EXPECT_THAT(answer(R"("text": "a", "tokens": [])"), HasSubstr("exactly one"));
  EXPECT_THAT(answer(R"("text": 3)"), HasSubstr("answers[1].text: expected a string"));
  EXPECT_THAT(answer(R"("tokens": "a")"), HasSubstr("answers[1].tokens: expected a list"));
  for (const char* token : {"\"\"", "-1", "1000000", "1.5", "null", "{}", R"({"hex": "a"})",
                            R"({"hex": "xx"})", R"({"hex": ""})", R"({"hex": 1})"}) {
    EXPECT_THAT(answer("\"tokens\": [\"a\", " + std::string(token) + "]"),
                HasSubstr("answers[1].tokens[1]: expected text"));
  }
  EXPECT_THAT(answer(R"("content": "a", "tool_calls": {})"), HasSubstr("tool_calls: expected"));
  EXPECT_THAT(answer(R"("tool_calls": [{"arguments": {}}])"),
              HasSubstr("answers[1].tool_calls[0].name: missing"));
  EXPECT_THAT(answer(R"("tool_calls": [{"name": "f", "arguments": "{}"}])"),
              HasSubstr("tool_calls[0].arguments: expected an object"));
  EXPECT_THAT(answer(R"("tool_calls": [7])"), HasSubstr("tool_calls[0]: expected an object"));
  EXPECT_THAT(answer(R"("text": "a", "txet": 1)"), HasSubstr("unknown field 'txet'"));
  EXPECT_THAT(answer(R"("text": "a", "times": 0)"), HasSubstr("times: '0' is not a whole number"));
  EXPECT_THAT(answer(R"("text": "a", "times": 1e3)"), HasSubstr("times: '1e3'"));
  EXPECT_THAT(answer(R"("text": "a", "token_delay_ms": -5)"),
              HasSubstr("answers[1].token_delay_ms: '-5' is not a number from 0.0 to"));
  EXPECT_THAT(answer(R"("text": "a", "token_delay_ms": 1e300)"), HasSubstr("token_delay_ms"));
  EXPECT_THAT(answer(R"("text": "a", "tokens_per_step": 2000)"), HasSubstr("tokens_per_step"));
  EXPECT_THAT(answer(R"("text": "a", "finish": "error")"), HasSubstr("none of stop, length"));
  EXPECT_THAT(answer(R"("text": "a", "when": "x")"), HasSubstr("answers[1].when: expected an ob"));
  EXPECT_THAT(answer(R"("text": "a", "when": {"matches": "x"})"), HasSubstr("'matches'"));
  EXPECT_THAT(answer(R"("text": "a", "when": {"contains": [1]})"), HasSubstr("when.contains"));
  EXPECT_THAT(answer(R"("text": "", "endless": true)"), HasSubstr("no tokens to repeat"));
  EXPECT_THAT(answer(R"("text": "a", "endless": 1)"), HasSubstr("endless: expected true or"));
  EXPECT_THAT(answer(R"("text": "a", "endless": true, "finish": "stop")"), HasSubstr("no effect"));
  EXPECT_THAT(answer(R"("text": "a", "stall_ms": 4)"), HasSubstr("stall_ms: has no effect"));
  EXPECT_THAT(answer(R"("text": "a", "error_message": "x")"), HasSubstr("has no effect"));
  EXPECT_THAT(answer(R"("text": "a", "logprob": 0.5)"), HasSubstr("logprob: '0.5'"));
}

}  // namespace
}  // namespace fathom
