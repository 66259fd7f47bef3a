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
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool stream = false;
  bool include_usage = false;                     // a chunk with the usage at the end of the stream
  bool continuous_usage = false;                  // the running usage in every chunk
  std::optional<int64_t> truncate_prompt_tokens;  // keep the last n; -1: what fits the context
};

struct ChatFields : CommonFields {
  bool include_reasoning = true;
};

struct CompletionFields : CommonFields {
  // At least one; each a text or at least one token id.
  std::vector<std::variant<std::string, std::vector<TokenId>>> prompts;
  bool echo = false;
  bool add_special_tokens = true;
  bool skip_special_tokens = true;
};

MaybeError ReadChatFields(const JsonValue& body, const RequestLimits& limits, ChatFields* fields);
MaybeError ReadCompletionFields(const JsonValue& body, const RequestLimits& limits,
                                CompletionFields* fields);

}  // namespace fathom
