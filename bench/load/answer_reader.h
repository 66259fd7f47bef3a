// AnswerReader: what the events of a streamed answer say, for the three APIs that have streams of
// their own.
//
// Reads no more than a load generator needs: whether an event brought something to see, the text
// (for the next turn of a conversation), usage, the end, an error. Single-threaded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fathom::load {

enum class Endpoint { kChat, kCompletions, kMessages };

// "chat", "completions", "messages".
std::string_view EndpointName(Endpoint endpoint);
// Below the base URL: "/v1/chat/completions".
std::string_view EndpointPath(Endpoint endpoint);

struct AnswerUsage {
  bool is_known = false;  // otherwise the server sent none
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t output_tokens = 0;
};

class AnswerReader {
 public:
  enum class Saw {
    kNothing,    // roles, usage, ...
    kContent,    // text, reasoning, or a part of a tool call
    kEnd,        // the mark at the end of every complete answer
    kError,      // the server's, in place of the rest
    kMalformed,  // no JSON object
  };

  explicit AnswerReader(Endpoint endpoint, bool keep_text = false)
      : endpoint_(endpoint), keep_text_(keep_text) {}

  Saw Read(std::string_view data);

  // Content without reasoning and tool calls; empty unless it is kept.
  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] const AnswerUsage& usage() const { return usage_; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  const Endpoint endpoint_;
  const bool keep_text_;
  std::string text_;
  std::string error_;
  AnswerUsage usage_;
};

// The message of an error answer in any of these APIs' forms, or the beginning of its text.
std::string ErrorMessage(std::string_view body);

}  // namespace fathom::load
