#include "server/request_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "chat/json_parse.h"

namespace fathom {
namespace {

const RequestLimits kLimits{100, 20, 0.7, 0.9};

JsonValue Body(const std::string& fields) {
  auto body = ParseJson("{" + fields + "}");
  EXPECT_TRUE(body.ok()) << fields << ": " << body.status().ToString();
  return std::move(body).value();
}

MaybeError ReadChat(const std::string& fields, ChatFields* out) {
  return ReadChatFields(Body(fields), kLimits, out);
}
MaybeError ReadChat(const std::string& fields) {
  ChatFields ignored;
  return ReadChat(fields, &ignored);
}
MaybeError ReadCompletion(const std::string& fields, CompletionFields* out) {
  return ReadCompletionFields(Body(fields), kLimits, out);
}
MaybeError ReadCompletion(const std::string& fields) {
  CompletionFields ignored;
  return ReadCompletion(fields, &ignored);
}

TEST(ChatFields, DefaultsAreTheModels) {
  ChatFields fields;
  ASSERT_FALSE(ReadChat("", &fields));
  EXPECT_EQ(fields.sampling.temperature, 0.7);
  EXPECT_EQ(fields.sampling.top_p, 0.9);
  EXPECT_EQ(fields.sampling.top_k, 0);
  EXPECT_FALSE(fields.sampling.seed);
  EXPECT_FALSE(fields.max_tokens);
  EXPECT_EQ(fields.num_logprobs, -1);
  EXPECT_TRUE(fields.include_reasoning);
  EXPECT_FALSE(fields.stream);
}

TEST(ChatFields, NullMeansAbsentAndUnknownIsIgnored) {
  ChatFields fields;
  ASSERT_FALSE(ReadChat(R"("temperature": null, "stop": null, "n": null, "tools": null,
      "logit_bias": null, "stream_options": null, "response_format": null, "colour": {"x": []})",
                        &fields));
  EXPECT_EQ(fields.sampling.temperature, 0.7);
}

TEST(ChatFields, ReachTheEngineAsGiven) {
  ChatFields fields;
  ASSERT_FALSE(ReadChat(R"("temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125,
      "presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.5, "seed": -7,
      "logit_bias": {"3": 5, "99": -1000}, "max_tokens": 9, "max_completion_tokens": 8,
      "min_tokens": 2, "stop": ["a", "b"], "stop_token_ids": [4, 5], "ignore_eos": true,
      "include_stop_str_in_output": true, "logprobs": true, "top_logprobs": 3, "stream": true,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true},
      "include_reasoning": false, "model": "m", "user": "u", "cache_salt": "s", "truncate_prompt_tokens": 5)",
                        &fields));
  EXPECT_EQ(fields.sampling.temperature, 0.5);
  EXPECT_EQ(fields.sampling.top_p, 0.25);
  EXPECT_EQ(fields.sampling.top_k, 7);
  EXPECT_EQ(fields.sampling.min_p, 0.125);
  EXPECT_EQ(fields.sampling.presence_penalty, -2);
  EXPECT_EQ(fields.sampling.frequency_penalty, 2);
  EXPECT_EQ(fields.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(fields.sampling.seed, -7);
  const std::vector<std::pair<TokenId, float>> bias = {{3, 5.0f}, {99, -100.0f}};
  EXPECT_EQ(fields.sampling.logit_bias, bias);
  EXPECT_EQ(fields.max_tokens, 8);
  EXPECT_EQ(fields.min_tokens, 2);
  EXPECT_THAT(fields.stop, ::testing::ElementsAre("a", "b"));
  EXPECT_THAT(fields.stop_token_ids, ::testing::ElementsAre(4, 5));
  EXPECT_TRUE(fields.ignore_eos);
  EXPECT_TRUE(fields.include_stop_in_output);
  EXPECT_EQ(fields.num_logprobs, 3);
  EXPECT_TRUE(fields.stream);
  EXPECT_TRUE(fields.include_usage);
  EXPECT_TRUE(fields.continuous_usage);
  EXPECT_FALSE(fields.include_reasoning);
  EXPECT_EQ(fields.model, "m");
  EXPECT_EQ(fields.user, "u");
  EXPECT_EQ(fields.cache_salt, "s");
  EXPECT_EQ(fields.priority, 0);
  EXPECT_EQ(fields.truncate_prompt_tokens, 5);
}

TEST(ChatFields, TinyTemperaturesAreGreedyOrRaised) {
  ChatFields fields;
  ASSERT_FALSE(
      ReadChat(R"("temperature": 0.000001, "top_p": 0.5, "top_k": 3, "min_p": 0.1)", &fields));
  EXPECT_EQ(fields.sampling.temperature, 0.0);
  EXPECT_EQ(fields.sampling.top_p, 1.0);
  EXPECT_EQ(fields.sampling.top_k, 0);
  EXPECT_EQ(fields.sampling.min_p, 0.0);
  ASSERT_FALSE(ReadChat(R"("temperature": 0.001, "top_p": 0.5)", &fields));
  EXPECT_EQ(fields.sampling.temperature, 0.01);
  EXPECT_EQ(fields.sampling.top_p, 0.5);
}

TEST(ChatFields, PriorityIsAnInt32WherePrioritySchedulingIsOn) {
  RequestLimits limits = kLimits;
  limits.priority_scheduling = true;
  ChatFields fields;
  ASSERT_FALSE(ReadChatFields(Body(R"("priority": -2147483648)"), limits, &fields));
  EXPECT_EQ(fields.priority, std::numeric_limits<int>::min());
  ASSERT_FALSE(ReadChatFields(Body(R"("priority": 2147483647)"), limits, &fields));
  EXPECT_EQ(fields.priority, std::numeric_limits<int>::max());
  for (const char* bad : {R"("priority": 2147483648)", R"("priority": -2147483649)",
                          R"("priority": 1.5)", R"("priority": 1e99)"}) {
    const MaybeError error = ReadChatFields(Body(bad), limits, &fields);
    ASSERT_TRUE(error) << bad;
    EXPECT_EQ(error->http_status, 400) << bad;
    EXPECT_EQ(error->param, "priority") << bad;
  }
}

TEST(ChatFields, SeedMinusOneIsNone) {
  ChatFields fields;
  ASSERT_FALSE(ReadChat(R"("seed": -1)", &fields));
  EXPECT_FALSE(fields.sampling.seed);
}

struct Row {
  const char* good;
  const char* bad;
  const char* param;  // of the bad one
  int status = 400;
};

TEST(ChatFields, EveryRowTakesItsRangeAndNamesWhatIsOutside) {
  const Row rows[] = {
      {R"("max_tokens": 1)", R"("max_tokens": 0)", "max_tokens"},
      {R"("max_tokens": 99999999999)", R"("max_tokens": "5")", "max_tokens"},
      {R"("max_completion_tokens": 1)", R"("max_completion_tokens": -1)", "max_completion_tokens"},
      {R"("max_tokens": 5)", R"("max_tokens": 1.5)", "max_tokens"},
      {R"("max_tokens": 5)", R"("max_tokens": true)", "max_tokens"},
      {R"("temperature": 0)", R"("temperature": -0.1)", "temperature"},
      {R"("temperature": 2)", R"("temperature": 2.01)", "temperature"},
      {R"("temperature": 1)", R"("temperature": "1")", "temperature"},
      {R"("temperature": 1)", R"("temperature": true)", "temperature"},
      {R"("top_p": 1)", R"("top_p": 0)", "top_p"},
      {R"("top_p": 0.01)", R"("top_p": 1.01)", "top_p"},
      {R"("top_k": -1)", R"("top_k": -2)", "top_k"},
      {R"("top_k": 0)", R"("top_k": 99999999999)", "top_k"},
      {R"("min_p": 1)", R"("min_p": 1.1)", "min_p"},
      {R"("presence_penalty": -2)", R"("presence_penalty": -2.1)", "presence_penalty"},
      {R"("frequency_penalty": 2)", R"("frequency_penalty": 2.1)", "frequency_penalty"},
      {R"("repetition_penalty": 0.1)", R"("repetition_penalty": 0)", "repetition_penalty"},
      {R"("repetition_penalty": 5)", R"("repetition_penalty": -1)", "repetition_penalty"},
      {R"("seed": 9223372036854775807)", R"("seed": 9223372036854775808)", "seed"},
      {R"("seed": -9223372036854775808)", R"("seed": 1.0)", "seed"},
      {R"("n": 1)", R"("n": 0)", "n"},
      {R"("n": 2)", R"("n": 129)", "n"},
      {R"("n": 1, "temperature": 0)", R"("n": 2, "temperature": 0)", "n"},
      {R"("stop": "x")", R"("stop": "")", "stop"},
      {R"("stop": [])", R"("stop": ["x", ""])", "stop"},
      {R"("stop": ["x"])", R"("stop": [1])", "stop.0"},
      {R"("stop": ["x"])", R"("stop": {})", "stop"},
      {R"("stop_token_ids": [0, 99])", R"("stop_token_ids": [1, 100])", "stop_token_ids.1"},
      {R"("stop_token_ids": [])", R"("stop_token_ids": [-1])", "stop_token_ids.0"},
      {R"("stop_token_ids": [])", R"("stop_token_ids": 5)", "stop_token_ids"},
      {R"("include_stop_str_in_output": true)", R"("include_stop_str_in_output": 1)",
       "include_stop_str_in_output"},
      {R"("ignore_eos": false)", R"("ignore_eos": "no")", "ignore_eos"},
      {R"("min_tokens": 3, "max_tokens": 3)", R"("min_tokens": 4, "max_tokens": 3)", "min_tokens"},
      {R"("min_tokens": 0)", R"("min_tokens": -1)", "min_tokens"},
      {R"("logprobs": true)", R"("logprobs": 5)", "logprobs"},
      {R"("logprobs": true, "top_logprobs": 20)", R"("logprobs": true, "top_logprobs": 21)",
       "top_logprobs"},
      {R"("top_logprobs": 0)", R"("top_logprobs": 1)", "top_logprobs"},
      {R"("logit_bias": {"0": 1.5})", R"("logit_bias": {"100": 1})", "logit_bias"},
      {R"("logit_bias": {})", R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {})", R"("logit_bias": {"1": "1"})", "logit_bias"},
      {R"("logit_bias": {})", R"("logit_bias": [])", "logit_bias"},
      {R"("stream": true)", R"("stream": "true")", "stream"},
      {R"("stream": true, "stream_options": {})", R"("stream_options": {})", "stream_options"},
      {R"("stream": true, "stream_options": {"include_usage": false})",
       R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage"},
      {R"("include_reasoning": true)", R"("include_reasoning": 0)", "include_reasoning"},
      {R"("truncate_prompt_tokens": -1)", R"("truncate_prompt_tokens": -2)",
       "truncate_prompt_tokens"},
      {R"("priority": 0)", R"("priority": 1)", "priority"},
      {R"("priority": null)", R"("priority": "1")", "priority"},
      {R"("priority": null)", R"("priority": true)", "priority"},
      {R"("user": "x")", R"("user": 5)", "user"},
      {R"("model": "x")", R"("model": 5)", "model"},
      {R"("cache_salt": "x")", R"("cache_salt": "")", "cache_salt"},
      {R"("cache_salt": "x")", R"("cache_salt": 5)", "cache_salt"},
      {R"("cache_salt": "x")", R"("cache_salt": "a/b")", "cache_salt"},
      {R"("cache_salt": "x")", R"("cache_salt": "a\u0000")", "cache_salt"},
      {R"("parallel_tool_calls": true)", R"("parallel_tool_calls": 1)", "parallel_tool_calls"},
      {R"("use_beam_search": false)", R"("use_beam_search": true)", "use_beam_search"},
      {R"("chat_template": null)", R"("chat_template": "x")", "chat_template"},
      {R"("response_format": {"type": "text"})", R"("response_format": {"type": "xml"})",
       "response_format.type"},
      {R"("response_format": {"type": "text"})", R"("response_format": {"type": "json_schema"})",
       "response_format.json_schema"},
      {R"("structured_outputs": null)", R"("structured_outputs": {})", "structured_outputs"},
      {R"("structured_outputs": null)", R"("structured_outputs": {"regex": "a", "json": {}})",
       "structured_outputs"},
      {R"("stream": true)", R"("stream": true, "prompt_logprobs": 1)", "prompt_logprobs"},
      {R"("allowed_token_ids": null)", R"("allowed_token_ids": [])", "allowed_token_ids"},
      {R"("allowed_token_ids": null)", R"("allowed_token_ids": [100])", "allowed_token_ids.0"},
      {R"("bad_words": [])", R"("bad_words": [""])", "bad_words"},
      // Valid, but not in this version.
      {R"("best_of": 1)", R"("best_of": 2)", "best_of", 422},
      {R"("response_format": {"type": "json_object"})",
       R"("response_format": {"type": "structural_tag"})", "response_format.type", 422},
      {R"("structured_outputs": {"regex": "a"})", R"("structured_outputs": {"structural_tag": {}})",
       "structured_outputs.structural_tag", 422},
      {R"("guided_json": {})", R"("guided_json": "{")", "guided_json"},
      {R"("guided_choice": ["a"])", R"("guided_choice": [])", "guided_choice"},
      {R"("guided_choice": ["a"])", R"("guided_choice": "a")", "guided_choice"},
      {R"("guided_regex": "a")", R"("guided_regex": "a", "guided_choice": ["a"])", "guided_choice"},
      {R"("guided_regex": "a")",
       R"("guided_regex": "a", "response_format": {"type": "json_object"})", "guided_regex"},
      {R"("prompt_logprobs": 20)", R"("prompt_logprobs": 21)", "prompt_logprobs"},
      {R"("prompt_logprobs": 0, "stream": true)", R"("prompt_logprobs": -1)", "prompt_logprobs"},
      {R"("thinking_token_budget": 5)", R"("thinking_token_budget": -2)", "thinking_token_budget"},
      {R"("return_token_ids": true)", R"("return_token_ids": 1)", "return_token_ids"},
      {R"("echo": true)", R"("echo": 1)", "echo"},
      {R"("kv_transfer_params": null)", R"("kv_transfer_params": {})", "kv_transfer_params", 422},
  };
  for (const Row& row : rows) {
    const MaybeError good = ReadChat(row.good);
    EXPECT_FALSE(good) << row.good << ": " << good->message;
    const MaybeError bad = ReadChat(row.bad);
    ASSERT_TRUE(bad) << row.bad;
    EXPECT_EQ(bad->http_status, row.status) << row.bad << ": " << bad->message;
    EXPECT_EQ(bad->param, row.param) << row.bad;
    EXPECT_THAT(bad->message, ::testing::HasSubstr(row.param)) << row.bad;
  }
}

TEST(ChatFields, TooManyStopStrings) {
  auto stops = [](int count) {
    std::string list = R"("stop": ["a")";
    for (int i = 1; i < count; ++i) list += R"(, "a")";
    return list + "]";
  };
  EXPECT_FALSE(ReadChat(stops(64)));
  EXPECT_TRUE(ReadChat(stops(65)));
}

TEST(ChatFields, MessagesDoNotEchoLongValues) {
  const MaybeError error = ReadChat(R"("temperature": ")" + std::string(10'000, 'x') + "\"");
  ASSERT_TRUE(error);
  EXPECT_LT(error->message.size(), 400u);
  const MaybeError digits = ReadChat(R"("top_k": )" + std::string(10'000, '9'));
  ASSERT_TRUE(digits);
  EXPECT_LT(digits->message.size(), 400u);
  const MaybeError token =
      ReadChat(R"("logit_bias": {")" + std::string(10'000, '0') + R"(5": "x"})");
  ASSERT_TRUE(token);
  EXPECT_EQ(token->message, "logit_bias needs a number for token 5");
}

TEST(CompletionFields, EveryRowTakesItsRangeAndNamesWhatIsOutside) {
  const Row rows[] = {
      {R"("prompt": "x")", R"("max_tokens": 1)", "prompt"},
      {R"("prompt": ["x", "y"])", R"("prompt": "")", "prompt"},
      {R"("prompt": [1, 2])", R"("prompt": [])", "prompt"},
      {R"("prompt": [[1], [2, 3]])", R"("prompt": [[1], []])", "prompt.1"},
      {R"("prompt": [[1]])", R"("prompt": [[1], [100]])", "prompt.1.0"},
      {R"("prompt": [99])", R"("prompt": [1, 100])", "prompt.1"},
      {R"("prompt": [1])", R"("prompt": [1, "x"])", "prompt.1"},
      {R"("prompt": ["x"])", R"("prompt": ["x", 1])", "prompt.1"},
      {R"("prompt": "x")", R"("prompt": {})", "prompt"},
      {R"("prompt": "x")", R"("prompt": 5)", "prompt"},
      {R"("prompt": "x", "max_tokens": 1)", R"("prompt": "x", "max_tokens": 0)", "max_tokens"},
      {R"("prompt": "x", "max_tokens": 0, "echo": true)", R"("prompt": "x", "max_tokens": -1)",
       "max_tokens"},
      {R"("prompt": "x", "logprobs": 20)", R"("prompt": "x", "logprobs": 21)", "logprobs"},
      {R"("prompt": "x", "logprobs": 0)", R"("prompt": "x", "logprobs": true)", "logprobs"},
      {R"("prompt": "x", "suffix": null)", R"("prompt": "x", "suffix": "y")", "suffix"},
      {R"("prompt": "x", "echo": true)", R"("prompt": "x", "echo": 1)", "echo"},
      {R"("prompt": "x", "echo": true, "logprobs": 1)",
       R"("prompt": "x", "echo": true, "logprobs": 99)", "logprobs"},
      {R"("prompt": ["x"], "n": 128)",
       R"("prompt": ["a", "b", "c", "d", "e", "f", "g", "h", "i"], "n": 128)", "n"},
  };
  for (const Row& row : rows) {
    const MaybeError good = ReadCompletion(row.good);
    EXPECT_FALSE(good) << row.good << ": " << good->message;
    const MaybeError bad = ReadCompletion(row.bad);
    ASSERT_TRUE(bad) << row.bad;
    EXPECT_EQ(bad->http_status, row.status) << row.bad << ": " << bad->message;
    EXPECT_EQ(bad->param, row.param) << row.bad;
  }
}

TEST(CompletionFields, SixteenTokensByDefault) {
  CompletionFields fields;
  ASSERT_FALSE(ReadCompletion(R"("prompt": "x")", &fields));
  EXPECT_EQ(fields.max_tokens, 16);
}

}  // namespace
}  // namespace fathom
