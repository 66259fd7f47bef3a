// /v1/responses: OpenAI's newer API over the same engine.
#include "server/api_server_fixture.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTools[] = R"("tools": [{"type": "function", "name": "look", "parameters":
    {"type": "object", "properties": {"at": {"type": "string"}}}}])";

class Responses : public ApiServerTest {
 protected:
  Reply Ask(std::string_view fields) {
    return Post("/v1/responses", "{" + std::string(fields) + "}");
  }
  std::string LastPrompt() { return front_end_.Decode(engine_.requests().back().prompt, false); }

  static std::vector<Json> Stream(const Reply& reply) {
    std::vector<Json> events = NamedEvents(reply);
    for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
    return events;
  }
};

TEST_F(Responses, WholeAnswer) {
  engine_.Script(IdsAndEos(kCallText));
  engine_.SetCachedTokens(2);
  const Json json =
      Parse(Ask(R"("input": "Hi", "instructions": "Be brief.", "metadata": {"a": "b"}, )" +
                std::string(kTools)));
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["id"].get<std::string>().rfind("resp_", 0), 0u);
  EXPECT_EQ(json["status"], "completed");
  EXPECT_TRUE(json["error"].is_null());
  EXPECT_TRUE(json["incomplete_details"].is_null());
  EXPECT_EQ(json["metadata"], Json({{"a", "b"}}));
  EXPECT_EQ(json["instructions"], "Be brief.");
  const Json& output = json["output"];
  ASSERT_EQ(output.size(), 3u);
  EXPECT_EQ(output[0]["type"], "reasoning");
  EXPECT_EQ(output[0]["content"][0]["text"], "so");
  EXPECT_EQ(output[1]["type"], "message");
  EXPECT_EQ(output[1]["content"][0]["type"], "output_text");
  EXPECT_EQ(output[1]["content"][0]["text"], "Let me look.");
  EXPECT_EQ(output[2]["type"], "function_call");
  EXPECT_EQ(output[2]["name"], "look");
  EXPECT_EQ(output[2]["arguments"], R"({"at": "it"})");
  EXPECT_EQ(output[2]["status"], "completed");
  const auto num_prompt = static_cast<int64_t>(engine_.requests()[0].prompt.size());
  EXPECT_EQ(json["usage"]["input_tokens"], num_prompt);
  EXPECT_EQ(json["usage"]["input_tokens_details"]["cached_tokens"], 2);
  EXPECT_EQ(json["usage"]["output_tokens"], IdsAndEos(kCallText).size());
  EXPECT_EQ(json["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  // The output goes back as input items: the next prompt begins with this one and the answer.
  const std::string first = LastPrompt();
  EXPECT_THAT(first, HasSubstr("Be brief."));
  Json items = Json::array({Json{{"role", "user"}, {"content", "Hi"}}});
  for (const Json& item : output) items.push_back(item);
  items.push_back(Json{
      {"type", "function_call_output"}, {"call_id", output[2]["call_id"]}, {"output", "found"}});
  const std::string next =
      R"({"instructions": "Be brief.", "input": )" + items.dump() + ", " + kTools + "}";
  EXPECT_EQ(Post("/v1/responses", next).status, 200);
  EXPECT_EQ(LastPrompt().rfind(first + kCallText, 0), 0u);
  EXPECT_THAT(LastPrompt(), HasSubstr("<tool_result>found</tool_result>"));
}

// Reports R134: the markup as text, and the call again.
TEST_F(Responses, StreamEvents) {
  engine_.Script(IdsAndEos(kCallText));
  const Reply reply = Ask(R"("input": "Hi", "stream": true, )" + std::string(kTools));
  EXPECT_EQ(reply.body.find("DSML"), std::string::npos);
  const auto events = Stream(reply);
  std::vector<std::string> types;
  for (const Json& event : events) {
    if (types.empty() || types.back() != event["type"]) types.push_back(event["type"]);
  }
  EXPECT_THAT(
      types,
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.reasoning_text.delta",
                  "response.reasoning_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.content_part.added", "response.output_text.delta",
                  "response.output_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  "response.output_item.done", "response.completed"));
  std::string text, reasoning, arguments;
  for (const Json& event : events) {
    EXPECT_EQ(event.value("content_index", 0), 0);
    const std::string delta = event.value("delta", "");
    if (event["type"] == "response.output_text.delta") text += delta;
    if (event["type"] == "response.reasoning_text.delta") reasoning += delta;
    if (event["type"] == "response.function_call_arguments.delta") arguments += delta;
    if (event["type"] == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], arguments);
    }
  }
  EXPECT_EQ(text, "Let me look.");
  EXPECT_EQ(reasoning, "so");
  const Json& response = events.back()["response"];
  EXPECT_EQ(response["status"], "completed");
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][2]["arguments"], arguments);
  EXPECT_EQ(response["usage"]["output_tokens"], IdsAndEos(kCallText).size());
}

TEST_F(Responses, WhatWasCutIsIncomplete) {
  engine_.Script(IdsAndEos("</think>abcdef"));
  const Json json = Parse(Ask(R"("input": "Hi", "max_output_tokens": 4)"));
  EXPECT_EQ(json["status"], "incomplete");
  EXPECT_EQ(json["incomplete_details"]["reason"], "max_output_tokens");
  const auto events = Stream(Ask(R"("input": "Hi", "max_output_tokens": 4, "stream": true)"));
  EXPECT_EQ(events.back()["type"], "response.incomplete");
}

TEST_F(Responses, AFailureInTheStream) {
  engine_.ScriptError(Ids("</think>ab"), Internal("exploded"));
  const auto events = Stream(Ask(R"("input": "Hi", "stream": true)"));
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(events.back()["response"]["status"], "failed");
  EXPECT_NE(events.back()["response"]["error"]["message"], "");
}

TEST_F(Responses, EveryRowNamesWhatIsWrong) {
  struct Row {
    const char* body;
    int status;
    const char* param;
  };
  const Row rows[] = {
      {R"("model": "fathom-nano")", 400, "input"},
      {R"("input": [])", 400, "input"},
      {R"("input": 5)", 400, "input"},
      {R"("input": [{"type": "item_reference", "id": "x"}])", 400, "input.0.type"},
      {R"("input": [{"role": "alien", "content": "x"}])", 400, "input.0.role"},
      {R"("input": [{"role": "user"}])", 400, "input.0.content"},
      {R"("input": [{"type": "function_call", "name": "x"}])", 400, "input.0.call_id"},
      {R"("input": "x", "tools": [{"type": "web_search"}])", 400, "tools.0.type"},
      {R"("input": "x", "tool_choice": {"type": "file_search"})", 400, "tool_choice"},
      {R"("input": "x", "background": true)", 400, "background"},
      {R"("input": "x", "prompt": {"id": "p"})", 400, "prompt"},
      {R"("input": "x", "truncation": "maybe")", 400, "truncation"},
      {R"("input": "x", "previous_response_id": "resp_1")", 404, "previous_response_id"},
      {R"("input": "x", "include": ["message.output_text.logprobs"])", 422, "include.0"},
      {R"("input": "x", "text": {"format": {"type": "xml"}})", 400, "text.format.type"},
      {R"("input": "x", "model": "other")", 404, "model"},
      {R"("input": "x", "temperature": 3)", 400, "temperature"},
      // Errors of the readers of chat requests, in the words of this API.
      {R"("input": "x", "max_output_tokens": 0)", 400, "max_output_tokens"},
      {R"("input": "x", "reasoning": {"effort": "huge"})", 400, "reasoning.effort"},
      {R"("input": [{"type": "reasoning", "content": "r"}, {"role": "user", "content": ["a", {}]}],
          "instructions": "Be brief.")",
       400, "input.1.content.1.type"},
      {R"("input": [{"type": "reasoning", "content": "r"}, {"role": "assistant", "content": 5}])",
       400, "input.1.content"},
  };
  for (const Row& row : rows) {
    const Reply reply = Ask(row.body);
    EXPECT_EQ(reply.status, row.status) << row.body << reply.body;
    EXPECT_EQ(Parse(reply)["error"]["param"], row.param) << row.body << reply.body;
  }
  EXPECT_EQ(Parse(Ask(R"("input": "x", "max_output_tokens": 0)"))["error"]["message"],
            "max_output_tokens must be an integer from 1 to 9223372036854775807, got 0");
  EXPECT_EQ(Get("/v1/responses/resp_1").status, 404);
  EXPECT_EQ(Post("/v1/responses/resp_1/cancel", "{}").status, 404);
  engine_.Script(IdsAndEos("</think>x"));
  EXPECT_EQ(
      Ask(R"("input": "x", "store": true, "include": ["reasoning.encrypted_content"])").status,
      200);
}

}  // namespace
}  // namespace fathom
