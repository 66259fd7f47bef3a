// AnswerFormat: the JSON of answers and of stream chunks, for chat and for plain completions.
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

#include "chat/output_parser.h"
#include "engine/request.h"

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
    std::string bytes;
    float logprob = 0.0f;
  };
  Candidate chosen;
  std::vector<Candidate> top;
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t reasoning_tokens = 0;
  int64_t cached_tokens = 0;
};

struct ChoiceEnd {
  std::string_view finish_reason;                                  // "stop", "length", "abort"
  std::variant<std::monostate, TokenId, std::string> stop_reason;  // none: null
};

struct Choice {
  std::optional<std::string> reasoning;  // absent where the model was not asked to think
  std::string content;
  std::vector<LogprobEntry> logprobs;
  ChoiceEnd end;
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  // Chunks. `usage` is null where the chunk has none; `logprobs` is null where none were asked for.
  // Empty where the format has no such chunk.
  virtual std::string RoleChunk(int choice, const Usage* usage) = 0;
  virtual std::string DeltaChunk(int choice, const OutputDelta& delta,
                                 const std::vector<LogprobEntry>* logprobs, const Usage* usage) = 0;
  virtual std::string EndChunk(int choice, const ChoiceEnd& end,
                               const std::vector<LogprobEntry>* logprobs, const Usage* usage) = 0;
  virtual std::string UsageChunk(const Usage& usage) = 0;
  // The answer in one piece.
  virtual std::string Whole(const std::vector<Choice>& choices, bool with_logprobs,
                            const Usage& usage) = 0;
};

std::unique_ptr<AnswerFormat> NewChatFormat(AnswerHead head, ReasoningField reasoning_field);
std::unique_ptr<AnswerFormat> NewCompletionFormat(AnswerHead head);

// Bodies of /v1/models and /v1/models/{id}.
std::string ModelListJson(const std::vector<std::string>& names, int64_t created,
                          int64_t max_model_len);
std::string ModelJson(const std::string& name, int64_t created, int64_t max_model_len);

}  // namespace fathom
