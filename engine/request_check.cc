#include "engine/request_check.h"

#include <algorithm>
#include <string>

#include "engine/sampler.h"

namespace fathom {

Status ValidateRequest(const GenerateRequest& r, const EngineInfo& info) {
  const auto prompt_tokens = static_cast<int64_t>(r.prompt.size());
  if (r.prompt.empty()) return InvalidArgument("prompt: empty");
  const auto check_id = [&](TokenId token, const char* field) -> Status {
    if (token >= 0 && token < info.vocab_size) return OkStatus();
    return InvalidArgument(std::string(field) + ": token id " + std::to_string(token) +
                           " is not in the vocabulary of " + std::to_string(info.vocab_size));
  };
  for (TokenId token : r.prompt) FATHOM_RETURN_IF_ERROR(check_id(token, "prompt"));
  for (TokenId token : r.stop_token_ids) FATHOM_RETURN_IF_ERROR(check_id(token, "stop_token_ids"));
  if (r.max_tokens < 1) {
    return InvalidArgument("max_tokens: " + std::to_string(r.max_tokens) + " is below 1");
  }
  if (r.min_tokens < 0 || r.min_tokens > r.max_tokens) {
    return InvalidArgument("min_tokens: " + std::to_string(r.min_tokens) +
                           " is not in [0, max_tokens]");
  }
  if (r.max_tokens > info.max_model_len - prompt_tokens) {
    return InvalidArgument("max_tokens: prompt of " + std::to_string(prompt_tokens) +
                           " tokens and " + std::to_string(r.max_tokens) +
                           " new ones exceed the maximum context length of " +
                           std::to_string(info.max_model_len));
  }
  if (r.priority != 0 && !info.priority_scheduling) {
    return InvalidArgument("priority: " + std::to_string(r.priority) +
                           ", but requests are served in the order of their arrival");
  }
  return ValidateSampling(r.sampling, info.vocab_size);
}

std::vector<TokenId> EndTokensOf(const GenerateRequest& request, const EngineInfo& info) {
  std::vector<TokenId> ends = request.stop_token_ids;
  // A request that says ignore_eos may still produce the end token; it is then text like any other.
  if (!request.ignore_eos) {
    ends.insert(ends.end(), info.eos_token_ids.begin(), info.eos_token_ids.end());
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace fathom
