// The fields of /v1/chat/completions and /v1/completions, checked and in the engine's terms.
//
// What the prompt is made of (messages, thinking, effort) is the text front end's matter
// (text_front_end.h). Fields that nobody knows are ignored; fields that are known and cannot be
// honoured are refused by name. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/types.h"
#include "chat/json_value.h"
#include "engine/request.h"
#include "server/api_error.h"

namespace fathom {

// What a request is checked against, and what it gets when it says nothing.
struct RequestLimits {
  int vocab_size = 0;
  int max_logprobs = 20;
  double default_temperature = 1.0;  // of the model's generation_config.json
  double default_top_p = 1.0;
  int default_top_k = 0;
  bool priority_scheduling = false;  // as EngineInfo
  bool tokens_as_ids = false;  // log-probabilities name tokens "token_id:7" unless asked not to
};

// What the answer may be, as the request says it.
struct ConstraintFields {
  enum class Kind { kNone, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kNone;
  std::string param;                    // the field that says so, for errors
  JsonValue schema;                     // with kJsonSchema; null: any object
  std::string text;                     // with kRegex and kGrammar
  std::vector<std::string> choices;     // with kChoice
  std::vector<TokenId> allowed_tokens;  // empty: all
  std::vector<std::string> bad_words;
  std::optional<int64_t> thinking_token_budget;  // none: as many as the model likes
};

struct CommonFields {
  std::string model;  // empty: not given
  std::string request_id;
  std::string user;        // empty: not given
  std::string cache_salt;  // empty: not given
  int priority = 0;
  SamplingParams sampling;
  std::optional<int64_t> max_tokens;  // at least 1, or 0 for completions with echo
  int64_t min_tokens = 0;
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  int num_logprobs = -1;  // as GenerateRequest
  int num_prompt_logprobs = -1;
  int num_samples = 1;  // `n`
  ConstraintFields constraint;
  bool return_token_ids = false;
  bool return_prompt_text = false;
  bool tokens_as_ids = false;
  bool echo = false;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool stream = false;
  bool include_usage = false;                     // a chunk with the usage at the end of the stream
  bool continuous_usage = false;                  // the running usage in every chunk
  std::optional<int64_t> truncate_prompt_tokens;  // keep the last n; -1: what fits the context
};

struct ChatFields : CommonFields {
  bool include_reasoning = true;
  bool parallel_tool_calls = true;
};

struct CompletionFields : CommonFields {
  // At least one; each a text or at least one token id.
  std::vector<std::variant<std::string, std::vector<TokenId>>> prompts;
  bool add_special_tokens = true;
  bool skip_special_tokens = true;
};

MaybeError ReadChatFields(const JsonValue& body, const RequestLimits& limits, ChatFields* fields);
MaybeError ReadCompletionFields(const JsonValue& body, const RequestLimits& limits,
                                CompletionFields* fields);

}  // namespace fathom
