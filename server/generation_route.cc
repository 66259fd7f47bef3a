#include "server/generation_route.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <ctime>
#include <mutex>
#include <utility>

#include "chat/json_parse.h"
#include "server/ids.h"
#include "server/messages_request.h"
#include "server/responses_request.h"

namespace fathom {
namespace {

constexpr int kMaxJsonDepth = 128;
// What DeepSeek recommends for effort max.
constexpr int64_t kMaxEffortContext = 393'216;
constexpr size_t kMaxClientName = 64;
constexpr size_t kMaxRequestId = 128;

void WarnOfContext(GenerationJob* job) {
  static constexpr std::string_view kWarning =
      "reasoning effort max is made for a context of at least 393216 tokens; this server has less";
  static std::once_flag logged;
  std::call_once(logged, [] { spdlog::warn("{}", kWarning); });
  job->headers.emplace_back("x-fathom-warning", kWarning);
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

// Names from clients go into logs, headers and ids.
bool IsPlainId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestId && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.' || c == ':';
  });
}

// What a client calls its request: header, body, or nothing.
std::string ExternalId(const http::Request& request, const CommonFields& fields) {
  const std::string_view header = request.Header("x-request-id");
  if (IsPlainId(header)) return std::string(header);
  return IsPlainId(fields.request_id) ? fields.request_id : std::string();
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

AnswerHead NewHead(std::string_view prefix, std::string model, const std::string& external_id) {
  return {external_id.empty() ? NewId(prefix) : std::string(prefix) + external_id,
          std::time(nullptr), std::move(model)};
}

OpenAiOptions FormatOptions(const GenerationRoute& route, const CommonFields& fields) {
  OpenAiOptions options;
  options.reasoning_field = route.reasoning_field;
  options.response_role = route.response_role;
  options.include_usage = fields.include_usage || route.force_include_usage;
  options.logprobs = fields.num_logprobs >= 0;
  options.prompt_logprobs = fields.num_prompt_logprobs >= 0 && !fields.echo;
  options.token_ids = fields.return_token_ids;
  options.tokens_as_ids = fields.tokens_as_ids;
  return options;
}

// What all routes have in common, given the id that the answer has.
void FillCommon(const GenerationRoute& route, const http::Request& request,
                const CommonFields& fields, const std::string& answer_id, GenerationJob* job) {
  GenerateRequest& generate = job->request;
  const std::string external_id = ExternalId(request, fields);
  // Two requests that clients call the same are told apart in the log.
  generate.id = external_id.empty() ? answer_id : answer_id + "-" + NewId("", 8);
  generate.sampling = fields.sampling;
  generate.min_tokens = fields.min_tokens;
  generate.stop_token_ids = fields.stop_token_ids;
  generate.ignore_eos = fields.ignore_eos;
  generate.num_logprobs = fields.num_logprobs;
  generate.num_prompt_logprobs = fields.num_prompt_logprobs;
  generate.cache_salt = fields.cache_salt;
  generate.priority = fields.priority;
  // Keys say who asks; `user` is what a client says of itself, and counts where there are none. The
  // scheduler remembers clients for a while: by a number where the name is long.
  generate.client = fields.user.size() <= kMaxClientName
                        ? fields.user
                        : "#" + std::to_string(std::hash<std::string>{}(fields.user));
  if (std::string client = route.keys->ClientOf(request); !client.empty()) {
    generate.client = std::move(client);
  }
  ChoiceOptions& choice = job->choice;
  choice.output.stop = fields.stop;
  choice.output.include_stop_in_output = fields.include_stop_in_output;
  choice.stop_tokens = fields.stop_token_ids;
  choice.end_tokens = fields.stop_token_ids;
  if (!fields.ignore_eos) {
    const std::vector<TokenId>& eos = route.engine->info().eos_token_ids;
    choice.end_tokens.insert(choice.end_tokens.end(), eos.begin(), eos.end());
  }
  choice.logprobs = fields.num_logprobs >= 0;
  choice.token_ids = fields.return_token_ids;
  job->num_samples = fields.num_samples;
  job->stream = fields.stream;
  job->stream_interval = route.stream_interval;
  job->continuous_usage = fields.continuous_usage;
  job->keep_alive_interval = route.keep_alive_interval;
  if (const auto trace = request.Header("traceparent"); IsPlainId(trace)) {
    job->traceparent = std::string(trace);
  }
  if (route.request_id_headers) {
    job->headers.emplace_back("X-Request-Id", external_id.empty() ? answer_id : external_id);
  }
}

// The prompt of a chat request and how its answer is read.
MaybeError PrepareChat(const GenerationRoute& route, const JsonValue& body,
                       const ChatFields& fields, const JsonValue& default_kwargs,
                       ChatPrompt* chat) {
  if (MaybeError error = route.front_end->PrepareChat(body, default_kwargs, chat)) return error;
  OutputParserOptions& parser = chat->parser;
  if (!parser.tools.empty() && chat->tool_choice != ToolChoice::kNone) {
    if (!route.parse_tools) {
      return BadRequest("tools",
                        "tools need a --tool-call-parser; this server was started without");
    }
    if (chat->tool_choice == ToolChoice::kAuto && !route.auto_tool_choice) {
      return BadRequest("tool_choice",
                        "tool_choice auto needs --enable-auto-tool-choice; this server was started "
                        "without");
    }
  }
  if (!route.parse_tools) parser.tools.clear();
  parser.parallel_tool_calls = fields.parallel_tool_calls;
  parser.split_reasoning = route.parse_reasoning;
  return std::nullopt;
}

// `format` makes the wire format from the head of the answer.
MaybeError BuildChatJob(
    const GenerationRoute& route, const http::Request& request, const JsonValue& body,
    std::string_view id_prefix,
    const std::function<std::unique_ptr<AnswerFormat>(AnswerHead, const ChatFields&)>& format,
    GenerationJob* job) {
  ChatFields fields;
  if (MaybeError error = ReadChatFields(body, route.limits, &fields)) return error;
  const auto model = route.names->Find(fields.model);
  if (!model) return UnknownModel(fields.model, *route.names);
  ChatPrompt chat;
  if (MaybeError error = PrepareChat(route, body, fields, *model->default_kwargs, &chat)) {
    return error;
  }
  MaybeError error = route.constraints->Prepare(fields.constraint, &chat, &job->new_constraint);
  if (error) return error;
  GenerationJob::Prompt prompt;
  prompt.ids = std::move(chat.ids);
  const int64_t max_model_len = route.engine->info().max_model_len;
  if (MaybeError too_long = FitPrompt(fields, max_model_len, &prompt)) return too_long;
  if (fields.echo) prompt.echo = std::move(chat.continued);
  if (fields.return_token_ids) prompt.wanted.token_ids = prompt.ids;
  if (fields.return_prompt_text)
    prompt.wanted.text = route.front_end->Decode(prompt.ids, /*skip_special_tokens=*/false);
  job->prompts.push_back(std::move(prompt));
  AnswerHead head = NewHead(id_prefix, model->name, ExternalId(request, fields));
  FillCommon(route, request, fields, head.id, job);
  job->choice.include_reasoning = fields.include_reasoning;
  job->choice.tool_choice = chat.tool_choice;
  job->choice.output.parser = std::move(chat.parser);
  if (chat.wants_long_context && max_model_len < kMaxEffortContext) WarnOfContext(job);
  job->format = format(std::move(head), fields);
  return std::nullopt;
}

MaybeError BuildCompletionJob(const GenerationRoute& route, const http::Request& request,
                              const JsonValue& body, GenerationJob* job) {
  CompletionFields fields;
  if (MaybeError error = ReadCompletionFields(body, route.limits, &fields)) return error;
  const auto model = route.names->Find(fields.model);
  if (!model) return UnknownModel(fields.model, *route.names);
  MaybeError error = route.constraints->Prepare(fields.constraint, nullptr, &job->new_constraint);
  if (error) return error;
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
    if (MaybeError too_long = FitPrompt(fields, route.engine->info().max_model_len, &prompt)) {
      return too_long;
    }
    if (fields.return_token_ids) prompt.wanted.token_ids = prompt.ids;
    job->prompts.push_back(std::move(prompt));
  }
  AnswerHead head = NewHead("cmpl-", model->name, ExternalId(request, fields));
  FillCommon(route, request, fields, head.id, job);
  job->choice.output.skip_special_tokens = fields.skip_special_tokens;
  job->choice.echo_logprobs = fields.echo && fields.num_logprobs >= 0;
  job->format = NewCompletionFormat(std::move(head), FormatOptions(route, fields));
  return std::nullopt;
}

MaybeError CountChatTokens(const GenerationRoute& route, const JsonValue& body, int64_t* count) {
  ChatFields fields;
  if (MaybeError error = ReadChatFields(body, route.limits, &fields)) return error;
  const auto model = route.names->Find(fields.model);
  if (!model) return UnknownModel(fields.model, *route.names);
  ChatPrompt chat;
  MaybeError error = PrepareChat(route, body, fields, *model->default_kwargs, &chat);
  if (!error) *count = static_cast<int64_t>(chat.ids.size());
  return error;
}

}  // namespace

RequestError UnknownModel(std::string_view asked, const ModelNames& names) {
  return {404,
          "no model " + QuoteForError(asked) + " here; served: " + names.Description(),
          "model",
          {}};
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

MaybeError BuildJob(const GenerationRoute& route, const http::Request& request,
                    GenerationJob* job) {
  JsonValue body;
  if (MaybeError error = ParseBody(request, &body)) return error;
  if (request.path == "/v1/completions") return BuildCompletionJob(route, request, body, job);
  if (request.path == "/v1/messages") {
    JsonValue chat;
    FieldNames names;
    MaybeError error = TranslateMessages(body, /*for_count=*/false, &chat, &names);
    if (error) return error;
    error = BuildChatJob(
        route, request, chat, "msg_",
        [](AnswerHead head, const ChatFields&) { return NewMessagesFormat(std::move(head)); }, job);
    if (error) names.Restore(&*error);
    return error;
  }
  if (request.path == "/v1/responses") {
    JsonValue chat;
    std::string repeated;
    FieldNames names;
    MaybeError error = TranslateResponses(body, &chat, &repeated, &names);
    if (error) return error;
    error = BuildChatJob(
        route, request, chat, "resp_",
        [&repeated](AnswerHead head, const ChatFields&) {
          return NewResponsesFormat(std::move(head), std::move(repeated));
        },
        job);
    if (error) names.Restore(&*error);
    return error;
  }
  return BuildChatJob(
      route, request, body, "chatcmpl-",
      [&route](AnswerHead head, const ChatFields& fields) {
        return NewChatFormat(std::move(head), FormatOptions(route, fields));
      },
      job);
}

MaybeError CountMessagesTokens(const GenerationRoute& route, const http::Request& request,
                               int64_t* count) {
  JsonValue body, chat_body;
  FieldNames names;
  if (MaybeError error = ParseBody(request, &body)) return error;
  MaybeError error = TranslateMessages(body, /*for_count=*/true, &chat_body, &names);
  if (error) return error;
  error = CountChatTokens(route, chat_body, count);
  if (error) names.Restore(&*error);
  return error;
}

}  // namespace fathom
