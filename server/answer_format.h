// AnswerFormat: the text of answers and of event streams, one class per wire format.
//
// Pure text: what is sent when is decided in generation.h. One object per request; single-threaded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "chat/output_message.h"
#include "chat/output_parser.h"
#include "engine/request.h"
#include "server/api_error.h"
#include "server/http/message.h"

namespace fathom {

enum class ReasoningField { kBoth, kReasoning, kReasoningContent };

struct AnswerHead {
  std::string id;       // "chatcmpl-..."
  int64_t created = 0;  // unix seconds
  std::string model;
};

// A token with the bytes it stands for, and the most likely ones at its place.
struct LogprobEntry {
  struct Candidate {
    TokenId token = 0;
    std::string bytes;
    float logprob = 0.0f;
  };
  Candidate chosen;
  std::vector<Candidate> top;
  bool is_first = false;  // of the prompt: nothing predicts it, so its logprob means nothing
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t cached_tokens = 0;
};

struct ChoiceEnd {
  std::string_view finish_reason;  // "stop", "length", "tool_calls", "abort"
  std::variant<std::monostate, TokenId, std::string> stop_reason;  // none: null
  int num_calls = 0;                                               // tool calls of the choice
};

// What a prompt was, for whoever asked. Empty where nobody did.
struct PromptEcho {
  std::vector<TokenId> token_ids;
  std::optional<std::string> text;
  std::vector<LogprobEntry> logprobs;  // of all its tokens
};

struct Choice {
  OutputMessage message;
  std::vector<LogprobEntry> logprobs;  // of every generated token, if asked for
  std::vector<TokenId> token_ids;      // likewise
  PromptEcho prompt;
  ChoiceEnd end;
};

// What a chunk carries besides its text: null where nobody asked.
struct ChunkExtras {
  const std::vector<LogprobEntry>* logprobs = nullptr;
  const std::vector<TokenId>* token_ids = nullptr;
  const Usage* usage = nullptr;
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // A stream: Begin; of each choice BeginChoice, deltas, EndChoice (choices may interleave); End.
  // Each appends whole server-sent events to `out`, or nothing where the format has none.
  virtual void Begin(const Usage& usage, std::string* out) = 0;
  // `prompt` has no logprobs: no stream may ask for them.
  virtual void BeginChoice(int choice, const PromptEcho& prompt, const ChunkExtras& extras,
                           std::string* out) = 0;
  virtual void Delta(int choice, const OutputDelta& delta, const ChunkExtras& extras,
                     std::string* out) = 0;
  virtual void EndChoice(int choice, const ChoiceEnd& end, const ChunkExtras& extras,
                         std::string* out) = 0;
  virtual void End(const Usage& usage, std::string* out) = 0;
  // Instead of what is missing of a stream.
  virtual void Error(const RequestError& error, std::string* out) = 0;
  // Sent while nothing else is; may come before Begin.
  [[nodiscard]] virtual std::string_view KeepAlive() const { return ": keep-alive\n\n"; }

  // The answer in one piece.
  virtual std::string Whole(const std::vector<Choice>& choices, const Usage& usage) = 0;
  // A failure before an answer began.
  [[nodiscard]] virtual http::Response Failure(const RequestError& error) const {
    return ErrorResponse(error);
  }
};

// What the OpenAI formats write only for clients that asked.
struct OpenAiOptions {
  ReasoningField reasoning_field = ReasoningField::kBoth;
  std::string response_role = "assistant";
  bool include_usage = false;  // a chunk with usage at the end of a stream
  bool logprobs = false;
  bool prompt_logprobs = false;
  bool token_ids = false;
  bool tokens_as_ids = false;  // tokens of logprobs are called "token_id:7"
};

std::unique_ptr<AnswerFormat> NewChatFormat(AnswerHead head, OpenAiOptions options);
std::unique_ptr<AnswerFormat> NewCompletionFormat(AnswerHead head, OpenAiOptions options);
// Anthropic's /v1/messages.
std::unique_ptr<AnswerFormat> NewMessagesFormat(AnswerHead head);
// OpenAI's /v1/responses. `request_members` is JSON text, members of an object without its braces:
// what the response repeats of its request.
std::unique_ptr<AnswerFormat> NewResponsesFormat(AnswerHead head, std::string request_members);

}  // namespace fathom
