// The server of the tests: real sockets, the bundled tokenizer, a scripted engine.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_server.h"
#include "server/http/test_client.h"
#include "server/scripted_engine.h"

namespace fathom {

inline Tokenizer LoadNanoTokenizer() {
  auto tokenizer = Tokenizer::Load(FATHOM_SOURCE_DIR "/models/fathom-nano");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return std::move(tokenizer).value();
}

// Reasoning, text and one call of a tool `look`.
inline constexpr char kCallText[] =
    "so</think>Let me look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"look\">\n"
    "<｜DSML｜parameter name=\"at\" string=\"true\">it</｜DSML｜parameter>\n"
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

class ApiServerTest : public ::testing::Test {
 protected:
  using Json = nlohmann::json;
  using Reply = http::TestClient::Reply;
  static constexpr int64_t kMaxModelLen = 1000;
  static constexpr TokenId kEos = 1;

  ApiServerTest() : engine_({2560, kMaxModelLen, {kEos}}), front_end_(LoadNanoTokenizer(), {}) {
    spdlog::set_level(spdlog::level::warn);
    options_.port = 0;
    options_.version = "1.2.3";
    options_.served_model_names = {"fathom-nano", "org/second"};
  }

  void Bind() {
    auto server = ApiServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
  }
  void Start() {
    Bind();
    server_->Serve(&engine_, &front_end_);
  }
  int port() {
    if (!server_) Start();
    return server_->port();
  }

  // One token per byte, so that tests decide where token borders lie; text in <...> that names an
  // added token becomes that token.
  static std::vector<TokenId> Ids(std::string_view text) {
    static const Tokenizer* const kTokenizer = new Tokenizer(LoadNanoTokenizer());
    static const std::vector<TokenId>* const kByteIds = [] {
      auto* ids = new std::vector<TokenId>(256, -1);
      for (TokenId id = 3; id < 259; ++id) {
        (*ids)[static_cast<unsigned char>(kTokenizer->TokenBytes(id)[0])] = id;
      }
      return ids;
    }();
    std::vector<TokenId> ids;
    while (!text.empty()) {
      const size_t end = text.front() == '<' ? text.find('>') : std::string_view::npos;
      const auto added = end == std::string_view::npos
                             ? std::nullopt
                             : kTokenizer->FindAddedToken(text.substr(0, end + 1));
      ids.push_back(added ? *added : (*kByteIds)[static_cast<unsigned char>(text.front())]);
      text.remove_prefix(added ? end + 1 : 1);
    }
    return ids;
  }
  static std::vector<TokenId> IdsAndEos(std::string_view text) {
    std::vector<TokenId> ids = Ids(text);
    ids.push_back(kEos);
    return ids;
  }

  Reply Post(std::string_view path, std::string_view body) {
    return http::TestClient(port()).Ask("POST", path, body);
  }
  Reply Get(std::string_view path) { return http::TestClient(port()).Ask("GET", path); }
  // `fields` are added to a small request: R"("stream": true)".
  Reply Chat(std::string_view fields = {}) {
    return Post("/v1/chat/completions", ChatBody(fields));
  }
  Reply Complete(std::string_view fields) {
    return Post("/v1/completions", "{" + std::string(fields) + "}");
  }
  static std::string ChatBody(std::string_view fields) {
    std::string body = R"({"messages": [{"role": "user", "content": "Hi"}])";
    if (!fields.empty()) body.append(", ").append(fields);
    return body + "}";
  }

  static Json Parse(const Reply& reply) {
    Json json = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(json.is_discarded()) << reply.body;
    return json;
  }
  // The data of a complete event stream, without the closing [DONE].
  static std::vector<Json> Events(const Reply& reply) {
    EXPECT_TRUE(reply.complete);
    std::vector<std::string> lines;
    for (size_t at = 0; at < reply.body.size();) {
      const size_t end = reply.body.find("\n\n", at);
      EXPECT_NE(end, std::string::npos) << "an event without its end: " << reply.body.substr(at);
      if (end == std::string::npos) break;
      const std::string line = reply.body.substr(at, end - at);
      if (line.rfind("data: ", 0) == 0) lines.push_back(line.substr(6));
      at = end + 2;
    }
    EXPECT_FALSE(lines.empty());
    std::vector<Json> events;
    if (lines.empty()) return events;
    EXPECT_EQ(lines.back(), "[DONE]");
    lines.pop_back();
    for (const std::string& line : lines) {
      events.push_back(Json::parse(line, nullptr, false));
      EXPECT_FALSE(events.back().is_discarded()) << line;
    }
    return events;
  }
  // The data of a complete stream of events that have names, as Anthropic's API and /v1/responses
  // send them; each data says its name, too.
  static std::vector<Json> NamedEvents(const Reply& reply) {
    EXPECT_TRUE(reply.complete);
    std::vector<Json> events;
    for (size_t at = 0; at < reply.body.size();) {
      const size_t end = reply.body.find("\n\n", at);
      const std::string text = reply.body.substr(at, end - at);
      const size_t line = text.find("\ndata: ");
      EXPECT_EQ(text.rfind("event: ", 0), 0u) << text;
      if (line == std::string::npos || end == std::string::npos) break;
      events.push_back(Json::parse(text.substr(line + 7), nullptr, false));
      EXPECT_EQ(events.back().value("type", ""), text.substr(7, line - 7));
      at = end + 2;
    }
    return events;
  }
  // The values of one member of the deltas, joined.
  static std::string Joined(const std::vector<Json>& events, const char* member) {
    std::string text;
    for (const Json& event : events) {
      for (const Json& choice : event.value("choices", Json::array())) {
        text += choice.value("delta", Json::object()).value(member, "");
      }
    }
    return text;
  }
  static void ExpectError(const Reply& reply, int status, const char* type, const Json& param) {
    EXPECT_EQ(reply.status, status) << reply.body;
    EXPECT_EQ(reply.headers.at("Content-Type"), "application/json");
    const Json error = Parse(reply).value("error", Json::object());
    EXPECT_EQ(error.value("type", ""), type) << reply.body;
    EXPECT_EQ(error.value("param", Json()), param) << reply.body;
    EXPECT_EQ(error.value("code", Json()), status) << reply.body;
    EXPECT_NE(error.value("message", ""), "");
  }

  ScriptedEngine engine_;
  const TextFrontEnd front_end_;
  ApiServerOptions options_;
  std::unique_ptr<ApiServer> server_;  // last: uses what is above
};

}  // namespace fathom
