// /tokenize and /detokenize.
#include "server/api_server_fixture.h"

namespace fathom {
namespace {

class TokenRoutes : public ApiServerTest {};

// Reports R003: estimates that are off by one.
TEST_F(TokenRoutes, MessagesCountAsTheChatRouteCountsThem) {
  engine_.Script(IdsAndEos("</think>x"));
  const std::string body =
      R"("messages": [{"role": "system", "content": "Be brief."},
                      {"role": "user", "content": "数一数 1 2 3\n\n\tok"}])";
  for (const std::string more : {"", R"(, "reasoning_effort": "none")", R"(, "tools": [{"type":
       "function", "function": {"name": "f"}}])"}) {
    const Json tokens = Parse(Post("/tokenize", "{" + body + more + "}"));
    const Json chat =
        Parse(Post("/v1/chat/completions", "{" + body + more + R"(, "max_tokens": 1})"));
    EXPECT_EQ(tokens["count"], chat["usage"]["prompt_tokens"]);
    EXPECT_EQ(tokens["tokens"], Json(engine_.requests().back().prompt));
    EXPECT_EQ(tokens["max_model_len"], kMaxModelLen);
    EXPECT_TRUE(tokens["token_strs"].is_null());
  }
}

TEST_F(TokenRoutes, PromptsThereAndBack) {
  const Json json =
      Parse(Post("/tokenize", R"({"prompt": "a</think>é", "return_token_strs": true})"));
  EXPECT_EQ(json["count"], json["tokens"].size());
  EXPECT_EQ(json["token_strs"].size(), json["tokens"].size());
  EXPECT_EQ(json["token_strs"][1], "</think>");
  const Json back = Parse(Post("/detokenize", Json({{"tokens", json["tokens"]}}).dump()));
  EXPECT_EQ(back["prompt"], "a</think>é");
}

TEST_F(TokenRoutes, BadRequests) {
  ExpectError(Post("/tokenize", "{}"), 400, "BadRequestError", "prompt");
  ExpectError(Post("/tokenize", R"({"prompt": "a", "messages": []})"), 400, "BadRequestError",
              "prompt");
  ExpectError(Post("/tokenize", R"({"prompt": "a", "model": "b"})"), 404, "NotFoundError", "model");
  ExpectError(Post("/tokenize", R"({"messages": []})"), 400, "BadRequestError", "messages");
  ExpectError(Post("/detokenize", "{}"), 400, "BadRequestError", "tokens");
  ExpectError(Post("/detokenize", R"({"tokens": [2560]})"), 400, "BadRequestError", "tokens.0");
  ExpectError(Post("/detokenize", R"({"tokens": ["1"]})"), 400, "BadRequestError", "tokens.0");
}

TEST_F(TokenRoutes, KeysGuardThem) {
  options_.api_keys = {"secret"};
  EXPECT_EQ(Post("/tokenize", R"({"prompt": "a"})").status, 401);
  EXPECT_EQ(Post("/detokenize", R"({"tokens": [5]})").status, 401);
}

}  // namespace
}  // namespace fathom
