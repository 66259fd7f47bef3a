#include "bench/load/answer_reader.h"

#include <gtest/gtest.h>

namespace fathom::load {
namespace {

using Saw = AnswerReader::Saw;

TEST(AnswerReader, ReadsAChat) {
  AnswerReader reader(Endpoint::kChat, /*keep_text=*/true);
  EXPECT_EQ(reader.Read(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})"),
            Saw::kNothing);
  EXPECT_EQ(reader.Read(R"({"choices":[{"delta":{"reasoning":"Hm.","content":null}}]})"),
            Saw::kContent);
  EXPECT_EQ(reader.Read(R"({"choices":[{"delta":{"reasoning_content":"Hm."}}]})"), Saw::kContent);
  EXPECT_EQ(reader.Read(R"({"choices":[{"delta":{"content":"Yes"}}]})"), Saw::kContent);
  EXPECT_EQ(reader.Read(R"({"choices":[{"delta":{"content":"."}}]})"), Saw::kContent);
  EXPECT_EQ(reader.Read(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})"), Saw::kContent);
  EXPECT_EQ(reader.Read(R"({"choices":[{"delta":{},"finish_reason":"stop"}]})"), Saw::kNothing);
  EXPECT_FALSE(reader.usage().is_known);
  EXPECT_EQ(reader.Read(R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,
                            "prompt_tokens_details":{"cached_tokens":4}}})"),
            Saw::kNothing);
  EXPECT_EQ(reader.Read("[DONE]"), Saw::kEnd);
  EXPECT_EQ(reader.text(), "Yes.");
  EXPECT_TRUE(reader.usage().is_known);
  EXPECT_EQ(reader.usage().prompt_tokens, 7);
  EXPECT_EQ(reader.usage().cached_tokens, 4);
  EXPECT_EQ(reader.usage().output_tokens, 5);
}

TEST(AnswerReader, ReadsACompletion) {
  AnswerReader reader(Endpoint::kCompletions);
  EXPECT_EQ(reader.Read(R"({"choices":[{"text":"a"}],"usage":null})"), Saw::kContent);
  EXPECT_EQ(reader.Read(R"({"choices":[{"text":"","finish_reason":"length"}]})"), Saw::kNothing);
  EXPECT_EQ(reader.Read("[DONE]"), Saw::kEnd);
  EXPECT_EQ(reader.text(), "") << "nobody asked for it";
}

TEST(AnswerReader, ReadsMessages) {
  AnswerReader reader(Endpoint::kMessages, /*keep_text=*/true);
  EXPECT_EQ(reader.Read(R"({"type":"message_start","message":{"usage":{"input_tokens":3,
                            "cache_read_input_tokens":10,"output_tokens":1}}})"),
            Saw::kNothing);
  EXPECT_EQ(reader.Read(R"({"type":"ping"})"), Saw::kNothing);
  for (const char* delta :
       {R"({"type":"thinking_delta","thinking":"Hm"})", R"({"type":"text_delta","text":"Yes"})",
        R"({"type":"input_json_delta","partial_json":"{"})"}) {
    EXPECT_EQ(reader.Read(std::string(R"({"type":"content_block_delta","delta":)") + delta + "}"),
              Saw::kContent);
  }
  EXPECT_EQ(reader.Read(R"({"type":"message_delta","usage":{"output_tokens":9}})"), Saw::kNothing);
  EXPECT_EQ(reader.Read(R"({"type":"message_stop"})"), Saw::kEnd);
  EXPECT_EQ(reader.text(), "Yes");
  EXPECT_EQ(reader.usage().prompt_tokens, 13);
  EXPECT_EQ(reader.usage().cached_tokens, 10);
  EXPECT_EQ(reader.usage().output_tokens, 9);
}

TEST(AnswerReader, TellsErrorsFromWhatIsNoAnswer) {
  AnswerReader reader(Endpoint::kChat);
  EXPECT_EQ(reader.Read(R"({"error":{"message":"scripted failure","code":500}})"), Saw::kError);
  EXPECT_EQ(reader.error(), "scripted failure");
  for (const char* data : {"", "x", "[1]", "{\"a\"", "7"}) {
    EXPECT_EQ(reader.Read(data), Saw::kMalformed) << data;
  }
  // Anything may stand where something else should.
  for (const char* data : {R"({"choices":7})", R"({"choices":[1,null,{"delta":[]}]})",
                           R"({"usage":[]})", R"({"usage":{"prompt_tokens":-5}})"}) {
    EXPECT_EQ(reader.Read(data), Saw::kNothing) << data;
  }
  EXPECT_EQ(reader.usage().prompt_tokens, 0);
  reader.Read(R"({"usage":{"prompt_tokens":18446744073709551615}})");
  EXPECT_EQ(reader.usage().prompt_tokens, int64_t{1} << 40);
}

TEST(ErrorMessage, ComesFromWhereTheServerPutIt) {
  EXPECT_EQ(ErrorMessage(R"({"error":{"message":"no"}})"), "no");
  EXPECT_EQ(ErrorMessage(R"({"type":"error","error":{"type":"x","message":"no"}})"), "no");
  EXPECT_EQ(ErrorMessage(R"({"error":"no"})"), "no");
  EXPECT_EQ(ErrorMessage("<html>"), "<html>");
  EXPECT_EQ(ErrorMessage(std::string(1000, 'x')), std::string(300, 'x') + "...");
}

}  // namespace
}  // namespace fathom::load
