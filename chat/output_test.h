// Test helper: model output in pieces through the parser.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "chat/chat_request.h"
#include "chat/finish_reason.h"
#include "chat/output_message.h"
#include "chat/output_parser.h"

namespace fathom {

struct OutputCase {
  OutputParserOptions options;
  std::string engine_reason = "stop";
  ToolChoice tool_choice = ToolChoice::kAuto;
};

struct ParsedOutput {
  OutputMessage message;
  std::string finish_reason;
  bool all_calls_complete = true;
  // Of all pushes, and how many characters of the text had come with each; not compared.
  std::vector<OutputDelta> deltas;
  std::vector<size_t> offsets;

  friend bool operator==(const ParsedOutput& a, const ParsedOutput& b) {
    return a.message == b.message && a.finish_reason == b.finish_reason &&
           a.all_calls_complete == b.all_calls_complete;
  }
  friend std::ostream& operator<<(std::ostream& out, const ParsedOutput& parsed) {
    out << "reasoning: " << parsed.message.reasoning << "\ncontent: " << parsed.message.content;
    for (const auto& call : parsed.message.calls) out << "\n" << call.name << call.arguments;
    return out << "\nfinish: " << parsed.finish_reason
               << (parsed.all_calls_complete ? "" : ", open");
  }
};

inline bool StartsCharacter(std::string_view text, size_t at) {
  return at >= text.size() || (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
}

// Also checks what holds for the deltas of any text.
inline ParsedOutput ParsePieces(const OutputCase& given, const std::vector<std::string>& pieces) {
  OutputParser parser(given.options);
  ParsedOutput parsed;
  size_t offset = 0;
  const auto take = [&](size_t begin) {
    for (size_t i = begin; i < parsed.deltas.size(); ++i) {
      const OutputDelta& delta = parsed.deltas[i];
      EXPECT_FALSE(delta.text.empty());
      if (i > begin && delta.kind == parsed.deltas[i - 1].kind) {
        EXPECT_EQ(delta.kind, OutputDelta::Kind::kToolCall) << "neighbours are joined";
      }
      parsed.message.Add(delta);
      parsed.offsets.push_back(offset);
    }
  };
  for (const std::string& piece : pieces) {
    const size_t begin = parsed.deltas.size();
    for (size_t i = 0; i < piece.size(); ++i) offset += StartsCharacter(piece, i) ? 1 : 0;
    parser.Push(piece, &parsed.deltas);
    take(begin);
  }
  const size_t begin = parsed.deltas.size();
  parser.Finish(given.engine_reason == "stop" ? OutputEnd::kStop : OutputEnd::kCut, &parsed.deltas);
  take(begin);
  EXPECT_EQ(parser.num_calls(), static_cast<int>(parsed.message.calls.size()));
  parsed.all_calls_complete = parser.all_calls_complete();
  parsed.finish_reason = FinishReasonFor(given.engine_reason, given.tool_choice, parser.num_calls(),
                                         parser.all_calls_complete());
  return parsed;
}

// Pieces of `size` characters.
inline std::vector<std::string> CutEvery(const std::string& text, size_t size) {
  std::vector<std::string> pieces;
  size_t characters = size;
  for (size_t at = 0; at < text.size(); ++at) {
    if (StartsCharacter(text, at) && characters++ == size) {
      pieces.emplace_back();
      characters = 1;
    }
    pieces.back() += text[at];
  }
  return pieces;
}

// Pieces of random sizes up to `max_size` characters.
inline std::vector<std::string> CutAtRandom(const std::string& text, size_t max_size,
                                            std::mt19937& random) {
  std::vector<std::string> pieces;
  size_t left = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (StartsCharacter(text, at) && left-- == 0) {
      pieces.emplace_back();
      left = random() % max_size;
    }
    pieces.back() += text[at];
  }
  return pieces;
}

// Whole, character by character and byte by byte, every cut in two, pieces of every size to 17, and
// random cuts: always `expected`.
inline void ExpectForEveryCut(const OutputCase& given, const std::string& text,
                              const ParsedOutput& expected) {
  EXPECT_EQ(ParsePieces(given, {text}), expected) << text;
  for (size_t size = 1; size <= 17; ++size) {
    EXPECT_EQ(ParsePieces(given, CutEvery(text, size)), expected) << text << " by " << size;
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(ParsePieces(given, bytes), expected) << text << " by bytes";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(ParsePieces(given, {text.substr(0, cut), text.substr(cut)}), expected)
        << text << " cut at " << cut;
  }
  std::mt19937 random(static_cast<unsigned>(text.size()));
  for (int round = 0; round < 200; ++round) {
    const size_t max_size = 1 + random() % 40;
    EXPECT_EQ(ParsePieces(given, CutAtRandom(text, max_size, random)), expected) << text;
  }
}

// The `function` objects of a request's `tools`.
inline std::vector<JsonValue> FunctionsOf(const JsonValue* tools) {
  std::vector<JsonValue> functions;
  if (tools == nullptr || tools->IfArray() == nullptr) return functions;
  for (const JsonValue& tool : *tools->IfArray()) functions.push_back(*tool.Find("function"));
  return functions;
}

}  // namespace fathom
