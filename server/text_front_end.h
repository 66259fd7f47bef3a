// TextFrontEnd: text to token ids and back, for the API. The engine only sees ids, so everything
// that needs text is here: prompts, and of the answer its text, stop strings and reasoning.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "chat/chat_request.h"
#include "chat/json_value.h"
#include "chat/output_parser.h"
#include "chat/stop_matcher.h"
#include "server/api_error.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

struct ChatPrompt {
  std::vector<TokenId> ids;
  OutputParserOptions parser;  // how the model's turn is read
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named_tool;           // with kNamed
  std::string continued;            // content of the assistant message that the model goes on with
  bool wants_long_context = false;  // effort max, made for 393,216 tokens of context
};

struct OutputOptions {
  // How to look for think marks and tool calls. None: plain text, all of it content.
  std::optional<OutputParserOptions> parser;
  bool skip_special_tokens = true;  // of plain text only; the reader of think marks needs them
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
};

// The text of one answer as its tokens come. Single-threaded; uses the front end in Push only.
class OutputStream {
 public:
  OutputStream(const Tokenizer& tokenizer, StopMatcher stop_matcher, const OutputOptions& options);

  // Appends what `token` completes. Text that may be the beginning of a stop string or a mark is
  // held back. After a stop string was found nothing more comes.
  void Push(TokenId token, std::vector<OutputDelta>* deltas);
  // Appends what was held back. Once, after the last token.
  void Finish(OutputEnd end, std::vector<OutputDelta>* deltas);
  // The stop string that ended the text; none before.
  [[nodiscard]] const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  // Whether the answer is complete although the model goes on: after a stop string, or after the
  // one tool call that was asked for.
  [[nodiscard]] bool is_complete() const {
    return matched_stop_.has_value() || (parser_ && parser_->wants_stop());
  }
  // Whether the next token belongs to the reasoning.
  [[nodiscard]] bool in_reasoning() const { return parser_ && parser_->in_reasoning(); }
  // Null for plain text.
  [[nodiscard]] const OutputParser* parser() const { return parser_ ? &*parser_ : nullptr; }
  [[nodiscard]] int num_calls() const { return parser_ ? parser_->num_calls() : 0; }
  // After Finish.
  [[nodiscard]] bool all_calls_complete() const { return parser_ && parser_->all_calls_complete(); }

 private:
  void Parse(std::string text, std::vector<OutputDelta>* deltas);

  Detokenizer detokenizer_;
  StopMatcher stop_matcher_;
  std::optional<OutputParser> parser_;
  std::optional<std::string> matched_stop_;
};

// Immutable; any thread may call any function.
class TextFrontEnd {
 public:
  TextFrontEnd(Tokenizer tokenizer, ChatOptions chat_options);

  // The prompt of a chat request: `messages` and the fields that shape it (chat/chat_request.h).
  // Members of `default_kwargs` (an object or null) come before the server's defaults.
  MaybeError PrepareChat(const JsonValue& body, const JsonValue& default_kwargs,
                         ChatPrompt* prompt) const;
  [[nodiscard]] Result<std::vector<TokenId>> EncodePrompt(std::string_view text,
                                                          bool add_special_tokens) const;
  [[nodiscard]] std::string Decode(std::span<const TokenId> ids, bool skip_special_tokens) const;
  // The exact bytes; may be part of a character.
  [[nodiscard]] std::string_view TokenBytes(TokenId id) const { return tokenizer_.TokenBytes(id); }
  [[nodiscard]] const Tokenizer& tokenizer() const { return tokenizer_; }
  // kInvalidArgument for stop strings that StopMatcher refuses. The front end must outlive the use
  // of the stream.
  [[nodiscard]] Result<std::unique_ptr<OutputStream>> NewOutput(const OutputOptions& options) const;

 private:
  const Tokenizer tokenizer_;
  const ChatOptions chat_options_;
};

}  // namespace fathom
