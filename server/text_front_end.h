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
  OutputState start = OutputState::kContent;  // where the model's turn begins
  bool wants_long_context = false;            // effort max, made for 393,216 tokens of context
};

struct OutputOptions {
  // Where to start looking for think marks. None: plain text, all of it content.
  std::optional<OutputState> start;
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
  void Finish(std::vector<OutputDelta>* deltas);
  // The stop string that ended the text; none before.
  [[nodiscard]] const std::optional<std::string>& matched_stop() const { return matched_stop_; }
  // Whether the next token belongs to the reasoning.
  [[nodiscard]] bool in_reasoning() const { return parser_ && parser_->in_reasoning(); }

 private:
  void Read(std::string text, std::vector<OutputDelta>* deltas);
  void ReadEnd(std::vector<OutputDelta>* deltas);

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
  // kInvalidArgument for stop strings that StopMatcher refuses. The front end must outlive the use
  // of the stream.
  [[nodiscard]] Result<std::unique_ptr<OutputStream>> NewOutput(const OutputOptions& options) const;

 private:
  const Tokenizer tokenizer_;
  const ChatOptions chat_options_;
};

}  // namespace fathom
