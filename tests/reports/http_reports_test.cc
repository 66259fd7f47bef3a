// Field reports of kinds http and raw_http, through the whole server with the replay model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat/json_parse.h"
#include "tests/reports/http_server.h"
#include "tests/reports/report_files.h"

namespace fathom::reports {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

Json OneAnswer(const Json& answer) {
  Json file = Json::object();
  file["answers"] = Json::array({answer});
  return file;
}

const Json kShortAnswer = OneAnswer({{"text", "fine"}});

Json Parse(const HttpServer::Reply& reply) {
  Json json = Json::parse(reply.body, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << reply.body;
  return json;
}

// Member order of a body matters to prompts, so bodies go out as the file has them.
std::string BodyOf(const std::string& id, size_t index) {
  std::string text = ReadReport(id)["input"]["requests"][index]["body"].dump();
  return text;
}

HttpServer::Reply Send(HttpServer& server, const std::string& id, size_t index) {
  const Json request = ReadReport(id)["input"]["requests"][index];
  return server.Post(request["path"].get<std::string>(), BodyOf(id, index));
}

std::vector<Json> Events(const HttpServer::Reply& reply, std::string* last_line) {
  std::vector<Json> events;
  for (size_t at = 0; at < reply.body.size();) {
    const size_t end = reply.body.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string line = reply.body.substr(at, end - at);
    *last_line = line;
    const Json event = Json::parse(line.substr(line.find("data: ") + 6), nullptr, false);
    if (!event.is_discarded()) events.push_back(event);
    at = end + 2;
  }
  return events;
}

TEST(HttpReports, R003TokenizeCountsWhatChatCounts) {
  HttpServer server(kShortAnswer);
  const Json tokens = Parse(Send(server, "R003", 0));
  const Json chat = Parse(Send(server, "R003", 1));
  EXPECT_EQ(tokens["count"], chat["usage"]["prompt_tokens"]);
  EXPECT_GT(tokens["count"], 10);
}

TEST(HttpReports, R009EffortNames) {
  HttpServer server(kShortAnswer);
  const Json report = ReadReport("R009");
  std::vector<std::string> prompts;
  for (size_t i = 0; i < report["input"]["requests"].size(); ++i) {
    const auto reply = Send(server, "R009", i);
    EXPECT_EQ(reply.status, report["expect"]["status"][i]) << i;
    if (reply.status == 200) {
      prompts.push_back(server.front_end().Decode(server.requests().back().prompt, false));
    } else {
      for (const Json& word : report["expect"]["error_400_mentions"]) {
        EXPECT_THAT(reply.body, HasSubstr(word.get<std::string>()));
      }
    }
  }
  // none, minimal, low, medium, high, xhigh, max
  ASSERT_EQ(prompts.size(), 7u);
  EXPECT_THAT(prompts[0], ::testing::EndsWith("</think>"));
  for (size_t i = 1; i < 7; ++i) EXPECT_THAT(prompts[i], ::testing::EndsWith("<think>"));
  EXPECT_EQ(prompts[2], prompts[4]);
  EXPECT_EQ(prompts[3], prompts[4]);
  EXPECT_EQ(prompts[5], prompts[6]);
  EXPECT_NE(prompts[4], prompts[6]);
}

TEST(HttpReports, R021TheBudgetEndsInsideTheReasoning) {
  const Json report = ReadReport("R021");
  HttpServer server(
      OneAnswer({{"tokens", report["input"]["requests"][0]["backend_emits_tokens"]}}));
  const Json json = Parse(Send(server, "R021", 0));
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  EXPECT_EQ(choice["message"]["reasoning_content"], report["expect"]["reasoning_content"]);
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
  EXPECT_EQ(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 6);
}

// The report's pauses are 12 s and the interval 10 s; both are a fortieth here.
TEST(HttpReports, R045SilenceIsNoThinking) {
  ApiServerOptions options;
  options.keep_alive_interval = std::chrono::milliseconds(250);
  HttpServer server(OneAnswer({{"text", "fine"}, {"first_token_delay_ms", 300}}), 4096, options);
  for (size_t i = 0; i < 2; ++i) {
    const auto reply = Send(server, "R045", i);
    EXPECT_EQ(reply.status, 200);
    const std::string first = reply.body.substr(0, reply.body.find("\n\n"));
    EXPECT_EQ(first, i == 0 ? "event: ping\ndata: {\"type\":\"ping\"}" : ": keep-alive");
    EXPECT_LT(reply.body.find("\n\n"), reply.body.find("delta"));
  }
}

TEST(HttpReports, R048JsonComesAfterTheReasoning) {
  const Json report = ReadReport("R048");
  HttpServer server(OneAnswer({{"text", report["input"]["requests"][0]["backend_wants"]}}));
  const Json choice = Parse(Send(server, "R048", 0))["choices"][0];
  EXPECT_EQ(choice["message"]["reasoning_content"], "free thoughts");
  const std::string content = choice["message"]["content"];
  EXPECT_EQ(content, "{\"ok\": true, \"n\": 1}") << "the grammar forbids nothing of what is right";
  EXPECT_EQ(choice["finish_reason"], "stop");
}

TEST(HttpReports, R050ForcedCallsAfterFreeThinking) {
  const Json report = ReadReport("R050");
  for (size_t i = 0; i < 2; ++i) {
    HttpServer server(OneAnswer({{"text", report["input"]["requests"][i]["backend_wants"]}}));
    const auto reply = Send(server, "R050", i);
    EXPECT_EQ(reply.status, 200);
    const Json choice = Parse(reply)["choices"][0];
    EXPECT_EQ(choice["message"]["reasoning_content"], "hm");
    EXPECT_EQ(choice["finish_reason"], report["expect"]["finish_reason"][i]);
    const Json calls = choice["message"].value("tool_calls", Json::array());
    ASSERT_GE(calls.size(), 1u);
    for (const Json& call : calls) {
      const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>());
      const std::string name = call["function"]["name"];
      if (i == 1) {
        EXPECT_EQ(name, report["expect"]["named_choice_calls_only"]);
      }
      EXPECT_TRUE(name == "emit" ? arguments["n"].is_number_integer()
                                 : arguments.value("s", Json("")).is_string())
          << arguments;
    }
  }
}

TEST(HttpReports, R052SchemasOfToolsAreChecked) {
  HttpServer server(kShortAnswer);
  EXPECT_EQ(Send(server, "R052", 0).status, 200);
  const auto reply = Send(server, "R052", 1);
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("tools[0]"));
  EXPECT_THAT(reply.body, HasSubstr(".a"));
  EXPECT_EQ(Parse(reply)["error"]["param"], "tools.0.function.parameters");
}

TEST(HttpReports, R053MalformedTagsDoNotLeak) {
  const Json report = ReadReport("R053");
  HttpServer server(OneAnswer({{"text", report["input"]["requests"][0]["backend_wants"]}}));
  Json body = report["input"]["requests"][0]["body"];
  body["chat_template_kwargs"] = {{"thinking", false}};
  const auto reply = server.Post("/v1/chat/completions", body.dump());
  const Json choice = Parse(reply)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "ok");
  EXPECT_THAT(reply.body, Not(HasSubstr("DSML")));
  for (const Json& call : choice["message"].value("tool_calls", Json::array())) {
    EXPECT_EQ(call["function"]["name"], "list_dir");
  }
}

TEST(HttpReports, R055SamplingDefaultsAreTheModels) {
  HttpServer server(kShortAnswer);  // generation_config.json without temperature
  const Json report = ReadReport("R055");
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Send(server, "R055", i).status, 200);
    const SamplingParams sampling = server.requests().back().sampling;
    const Json& expected = report["expect"]["effective_sampling"][i];
    EXPECT_EQ(sampling.temperature, expected["temperature"]);
    EXPECT_EQ(sampling.top_p, expected.value("top_p", 1.0));
  }
}

TEST(HttpReports, R059BodiesThatAreNoJson) {
  HttpServer server(kShortAnswer);
  const Json report = ReadReport("R059");
  const Json& bodies = report["input"]["bodies"];
  for (size_t i = 0; i < bodies.size(); ++i) {
    const auto reply =
        server.Post(report["input"]["path"].get<std::string>(), bodies[i].get<std::string>());
    EXPECT_EQ(reply.status, report["expect"]["status"][i]) << bodies[i];
  }
  EXPECT_EQ(server.Get("/health").status, 200);
}

TEST(HttpReports, R136NamesWithSuffixesAndAliases) {
  ApiServerOptions options;
  HttpServer server(kShortAnswer, 4096, options);
  const Json report = ReadReport("R136");
  const Json thinking = report["expect"]["thinking"];
  for (size_t i = 0; i < 4; ++i) {
    Json body = report["input"]["requests"][i]["body"];
    if (body["model"] == "deepseek-v4-flash[1m]") body["model"] = "m[1m]";
    const auto reply = server.Post("/v1/chat/completions", body.dump());
    EXPECT_EQ(reply.status, report["expect"]["status"][i]);
    if (reply.status != 200) {
      EXPECT_THAT(reply.body, HasSubstr("nope"));
      EXPECT_THAT(reply.body, HasSubstr("served: m"));
      continue;
    }
    const std::string prompt = server.front_end().Decode(server.requests().back().prompt, false);
    const bool thinks = thinking[i].is_boolean() ? thinking[i].get<bool>() : true;
    EXPECT_THAT(prompt, ::testing::EndsWith(thinks ? "<think>" : "</think>"));
  }
}

TEST(HttpReports, R137ShapesOfAnswers) {
  HttpServer server(kShortAnswer);
  const Json report = ReadReport("R137");
  const auto whole = Send(server, "R137", 0);
  const auto ordered = nlohmann::ordered_json::parse(whole.body);
  size_t i = 0;
  for (const auto& [key, value] : ordered.items()) {
    if (i < report["expect"]["first_keys"].size()) {
      EXPECT_EQ(key, report["expect"]["first_keys"][i++]);
    }
  }
  EXPECT_EQ(i, report["expect"]["first_keys"].size());
  EXPECT_EQ(ordered["object"], report["expect"]["object"][0]);
  std::string last_line;
  const auto events = Events(Send(server, "R137", 1), &last_line);
  EXPECT_EQ(last_line, report["expect"]["last_line"]);
  int finish_chunks = 0;
  for (const Json& event : events) {
    EXPECT_EQ(event["object"], report["expect"]["object"][1]);
    for (const Json& choice : event["choices"]) finish_chunks += !choice["finish_reason"].is_null();
  }
  EXPECT_EQ(finish_chunks, report["expect"]["stream_finish_chunks"]);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_TRUE(events.back().contains("usage"));
}

TEST(HttpReports, R138WhatFitsTheContext) {
  const Json report = ReadReport("R138");
  HttpServer server(kShortAnswer, report["input"]["server"]["max_model_len"]);
  EXPECT_EQ(Send(server, "R138", 0).status, 200);
  const GenerateRequest first = server.requests().back();
  EXPECT_EQ(first.max_tokens, 2048 - static_cast<int64_t>(first.prompt.size()));
  Json body = report["input"]["requests"][1]["body"];
  std::string text;
  for (int i = 0; i < 3000; ++i) text += " 7";  // at least a token each
  body["messages"][0]["content"] = text;
  const auto second = server.Post("/v1/chat/completions", body.dump());
  EXPECT_EQ(second.status, 400);
  EXPECT_EQ(Parse(second)["error"]["code"], report["expect"]["second"]["error_code"]);
  EXPECT_THAT(second.body, HasSubstr("2048"));
  EXPECT_EQ(Send(server, "R138", 2).status, 200);  // lowered to what fits (docs/serving.md)
  EXPECT_EQ(server.requests().back().max_tokens, first.max_tokens);
}

TEST(HttpReports, R142EffortMaxOnASmallServerWarns) {
  const Json report = ReadReport("R142");
  HttpServer server(OneAnswer({{"text", "fine"}, {"endless", true}}),
                    report["input"]["server"]["max_model_len"]);
  const auto reply = Send(server, "R142", 0);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(Parse(reply)["choices"][0]["finish_reason"], "length");
  const std::string warning =
      reply.headers.at(report["expect"]["response_header_present"].get<std::string>());
  for (const Json& word : report["expect"]["log_warning_mentions"]) {
    EXPECT_THAT(warning, HasSubstr(word.get<std::string>()));
  }
}

}  // namespace
}  // namespace fathom::reports
