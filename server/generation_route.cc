#include "server/generation_route.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <ctime>
#include <mutex>
#include <random>
#include <utility>

#include "chat/json_parse.h"

namespace fathom {
namespace {

constexpr int kMaxJsonDepth = 128;
// What DeepSeek recommends for effort max.
constexpr int64_t kMaxEffortContext = 393'216;

void WarnOfContext(GenerationJob* job) {
  static constexpr std::string_view kWarning =
      "reasoning effort max is made for a context of at least 393216 tokens; this server has less";
  static std::once_flag logged;
  std::call_once(logged, [] { spdlog::warn("{}", kWarning); });
  job->headers.emplace_back("x-fathom-warning", kWarning);
}

constexpr size_t kMaxClientName = 64;

// 128 random bits: ids of different servers must not meet in a client's log.
std::string NewId(std::string_view prefix) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::random_device random;
  std::string id(prefix);
  for (int word = 0; word < 4; ++word) {
    uint32_t bits = random();
    for (int i = 0; i < 8; ++i, bits >>= 4) id.push_back(kHex[bits & 15]);
  }
  return id;
}

bool IsJson(std::string_view content_type) {
  static constexpr std::string_view kJson = "application/json";
  content_type = content_type.substr(0, content_type.find(';'));
  while (!content_type.empty() && (content_type.back() == ' ' || content_type.back() == '\t')) {
    content_type.remove_suffix(1);
  }
  return std::equal(content_type.begin(), content_type.end(), kJson.begin(), kJson.end(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; });
}

MaybeError ParseBody(const http::Request& request, JsonValue* body) {
  if (!IsJson(request.Header("content-type"))) {
    return BadRequest("", "the Content-Type must be application/json");
  }
  JsonParseOptions options;
  options.max_depth = kMaxJsonDepth;
  Result<JsonValue> parsed = ParseJson(request.body, options);
  if (!parsed.ok()) return BadRequest("", "bad JSON: " + parsed.status().message());
  if (parsed->IfObject() == nullptr) return BadRequest("", "the body must be a JSON object");
  *body = std::move(parsed).value();
  return std::nullopt;
}

// Applies truncate_prompt_tokens and finds how many tokens may follow.
MaybeError FitPrompt(const CommonFields& fields, int64_t max_model_len,
                     GenerationJob::Prompt* prompt) {
  std::vector<TokenId>& ids = prompt->ids;
  const bool only_echo = fields.max_tokens == 0;
  const int64_t least = only_echo ? 0 : 1;
  if (fields.truncate_prompt_tokens) {
    const int64_t room = max_model_len - std::min(fields.max_tokens.value_or(1), max_model_len - 1);
    const int64_t keep = *fields.truncate_prompt_tokens < 0 ? room : *fields.truncate_prompt_tokens;
    const int64_t excess = static_cast<int64_t>(ids.size()) - keep;
    if (excess > 0) ids.erase(ids.begin(), ids.begin() + excess);
  }
  const auto num_prompt = static_cast<int64_t>(ids.size());
  if (num_prompt == 0) return BadRequest("prompt", "the prompt must hold at least one token");
  if (num_prompt + least > max_model_len) {
    const std::string asked =
        fields.max_tokens ? std::to_string(*fields.max_tokens) : std::string("no number of");
    return RequestError{400,
                        "the maximum context length is " + std::to_string(max_model_len) +
                            " tokens; the prompt has " + std::to_string(num_prompt) + " and " +
                            asked + " tokens were requested for the answer",
                        "input_tokens", "context_length_exceeded"};
  }
  prompt->max_tokens =
      std::min(fields.max_tokens.value_or(max_model_len), max_model_len - num_prompt);
  if (fields.min_tokens > prompt->max_tokens) {
    return BadRequest("min_tokens", "min_tokens is larger than the " +
                                        std::to_string(prompt->max_tokens) +
                                        " tokens that the answer may have");
  }
  return std::nullopt;
}

void FillCommon(const GenerationRoute& route, const CommonFields& fields, std::string id,
                GenerationJob* job) {
  job->request.id = std::move(id);
  job->request.sampling = fields.sampling;
  job->request.min_tokens = fields.min_tokens;
  job->request.stop_token_ids = fields.stop_token_ids;
  job->request.ignore_eos = fields.ignore_eos;
  job->request.num_logprobs = fields.num_logprobs;
  job->request.cache_salt = fields.cache_salt;
  job->request.priority = fields.priority;
  // The scheduler remembers clients for a while: by a number where the name is long.
  job->request.client = fields.user.size() <= kMaxClientName
                            ? fields.user
                            : "#" + std::to_string(std::hash<std::string>{}(fields.user));
  job->output.stop = fields.stop;
  job->output.include_stop_in_output = fields.include_stop_in_output;
  job->stream = fields.stream;
  job->include_usage = fields.include_usage || route.force_include_usage;
  job->continuous_usage = fields.continuous_usage;
  job->keep_alive_interval = route.keep_alive_interval;
}

MaybeError BuildChatJob(const GenerationRoute& route, const JsonValue& body, GenerationJob* job) {
  ChatFields fields;
  if (MaybeError error = ReadChatFields(body, route.limits, &fields)) return error;
  const auto model = route.names->Find(fields.model);
  if (!model) return UnknownModel(fields.model, *route.names);
  ChatPrompt chat;
  if (MaybeError error = route.front_end->PrepareChat(body, *model->default_kwargs, &chat)) {
    return error;
  }
  GenerationJob::Prompt prompt;
  prompt.ids = std::move(chat.ids);
  const int64_t max_model_len = route.engine->info().max_model_len;
  if (MaybeError error = FitPrompt(fields, max_model_len, &prompt)) return error;
  job->prompts.push_back(std::move(prompt));
  AnswerHead head{NewId("chatcmpl-"), std::time(nullptr), model->name};
  FillCommon(route, fields, head.id, job);
  job->include_reasoning = fields.include_reasoning;
  job->output.start = chat.start;
  if (chat.wants_long_context && max_model_len < kMaxEffortContext) WarnOfContext(job);
  job->format = NewChatFormat(std::move(head), route.reasoning_field);
  return std::nullopt;
}

MaybeError BuildCompletionJob(const GenerationRoute& route, const JsonValue& body,
                              GenerationJob* job) {
  CompletionFields fields;
  if (MaybeError error = ReadCompletionFields(body, route.limits, &fields)) return error;
  const auto model = route.names->Find(fields.model);
  if (!model) return UnknownModel(fields.model, *route.names);
  for (auto& given : fields.prompts) {
    GenerationJob::Prompt prompt;
    if (auto* ids = std::get_if<std::vector<TokenId>>(&given)) {
      prompt.ids = std::move(*ids);
      if (fields.echo)
        prompt.echo = route.front_end->Decode(prompt.ids, fields.skip_special_tokens);
    } else {
      auto& text = std::get<std::string>(given);
      auto encoded = route.front_end->EncodePrompt(text, fields.add_special_tokens);
      if (!encoded.ok()) return FromStatus(encoded.status());
      prompt.ids = std::move(encoded).value();
      if (fields.echo) prompt.echo = std::move(text);
    }
    MaybeError error = FitPrompt(fields, route.engine->info().max_model_len, &prompt);
    if (error) return error;
    job->prompts.push_back(std::move(prompt));
  }
  AnswerHead head{NewId("cmpl-"), std::time(nullptr), model->name};
  FillCommon(route, fields, head.id, job);
  job->output.skip_special_tokens = fields.skip_special_tokens;
  job->format = NewCompletionFormat(std::move(head));
  return std::nullopt;
}

}  // namespace

RequestError UnknownModel(std::string_view asked, const ModelNames& names) {
  return {404,
          "no model " + QuoteForError(asked) + " here; served: " + names.Description(),
          "model",
          {}};
}

MaybeError BuildJob(const GenerationRoute& route, const http::Request& request,
                    GenerationJob* job) {
  JsonValue body;
  if (MaybeError error = ParseBody(request, &body)) return error;
  MaybeError error = request.path == "/v1/chat/completions" ? BuildChatJob(route, body, job)
                                                            : BuildCompletionJob(route, body, job);
  // Keys say who asks; `user` is what a client says of itself, and counts where there are none.
  if (std::string client = route.keys->ClientOf(request.Header("authorization"));
      !error && !client.empty()) {
    job->request.client = std::move(client);
  }
  return error;
}

}  // namespace fathom
