#include "server/request_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>
#include <utility>

#include "chat/json_parse.h"
#include "server/field_reader.h"

namespace fathom {
namespace {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr double kDoubleMax = std::numeric_limits<double>::max();
constexpr size_t kMaxStopStrings = 64;
constexpr size_t kMaxPrompts = 1024;
constexpr size_t kMaxBadWords = 1024;
constexpr size_t kMaxChoices = 4096;
// Of one prompt, and of all prompts of a request.
constexpr int64_t kMaxSamples = 128;
constexpr size_t kMaxAnswers = 1024;
constexpr int64_t kDefaultCompletionTokens = 16;
// Below the first a temperature means greedy; up to the second it is raised, because dividing
// logits by less overflows.
constexpr double kGreedyBelow = 1e-5;
constexpr double kMinTemperature = 0.01;

void ReadLogitBias(const JsonValue& map, const RequestLimits& limits, FieldReader* reader,
                   SamplingParams* sampling) {
  for (const auto& [key, value] : *map.IfObject()) {
    int id = -1;
    const char* end = key.data() + key.size();
    const auto parsed = std::from_chars(key.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || id < 0 || id >= limits.vocab_size) {
      return reader->Fail("logit_bias", "has a key that is no token id: " + QuoteForError(key));
    }
    const std::optional<double> bias = value.AsDouble();
    if (!bias) return reader->Fail("logit_bias", "needs a number for token " + std::to_string(id));
    sampling->logit_bias.emplace_back(id, static_cast<float>(std::clamp(*bias, -100.0, 100.0)));
  }
}

void ReadSampling(FieldReader* reader, const RequestLimits& limits, SamplingParams* sampling) {
  double temperature = reader->Number("temperature", 0.0, 2.0).value_or(limits.default_temperature);
  if (temperature >= kGreedyBelow) temperature = std::max(temperature, kMinTemperature);
  sampling->temperature = temperature;
  sampling->top_p = reader->Number("top_p", 0.0, 1.0).value_or(limits.default_top_p);
  if (sampling->top_p == 0.0) reader->Fail("top_p", "must be larger than 0");
  const int64_t top_k =
      reader->Int("top_k", -1, std::numeric_limits<int>::max()).value_or(limits.default_top_k);
  sampling->top_k = static_cast<int>(std::max<int64_t>(top_k, 0));
  sampling->min_p = reader->Number("min_p", 0.0, 1.0).value_or(0.0);
  sampling->presence_penalty = reader->Number("presence_penalty", -2.0, 2.0).value_or(0.0);
  sampling->frequency_penalty = reader->Number("frequency_penalty", -2.0, 2.0).value_or(0.0);
  sampling->repetition_penalty =
      reader->Number("repetition_penalty", 0.0, kDoubleMax).value_or(1.0);
  if (sampling->repetition_penalty == 0.0) {
    reader->Fail("repetition_penalty", "must be larger than 0");
  }
  sampling->seed = reader->Int("seed", std::numeric_limits<int64_t>::min(), kInt64Max);
  if (sampling->seed == -1) sampling->seed.reset();
  if (const JsonValue* map = reader->Object("logit_bias")) {
    ReadLogitBias(*map, limits, reader, sampling);
  }
  if (temperature < kGreedyBelow) {
    sampling->temperature = 0.0;
    sampling->top_p = 1.0;
    sampling->top_k = 0;
    sampling->min_p = 0.0;
  }
}

void ReadStreaming(FieldReader* reader, CommonFields* fields) {
  fields->stream = reader->Bool("stream", false);
  const JsonValue* options = reader->Object("stream_options");
  if (options == nullptr) return;
  if (!fields->stream) return reader->Fail("stream_options", "is only allowed with stream: true");
  FieldReader inner(*options, "stream_options");
  fields->include_usage = inner.Bool("include_usage", false);
  fields->continuous_usage = inner.Bool("continuous_usage_stats", false);
  reader->Merge(inner.error());
}

using Kind = ConstraintFields::Kind;

// json_schema is {"name", "schema", ...}; a missing schema means any object.
void ReadJsonSchema(const JsonValue& holder, const std::string& param, ConstraintFields* out) {
  const JsonValue* schema = holder.FindNonNull("schema");
  out->kind = schema == nullptr ? Kind::kJsonObject : Kind::kJsonSchema;
  out->param = param + ".schema";
  if (schema != nullptr) out->schema = *schema;
}

void ReadResponseFormat(FieldReader* reader, ConstraintFields* out) {
  const JsonValue* format = reader->Object("response_format");
  if (format == nullptr) return;
  const JsonValue* type = format->FindNonNull("type");
  const std::string* name = type == nullptr ? nullptr : type->IfString();
  if (name == nullptr || (*name != "text" && *name != "json_object" && *name != "json_schema" &&
                          *name != "structural_tag")) {
    return reader->Fail("response_format.type",
                        "must be text, json_object, json_schema or structural_tag");
  }
  if (*name == "text") return;
  if (*name == "structural_tag") return reader->Refuse("response_format.type");
  out->kind = Kind::kJsonObject;
  out->param = "response_format";
  if (*name == "json_object") return;
  const JsonValue* holder = format->FindNonNull("json_schema");
  if (holder == nullptr || holder->IfObject() == nullptr) {
    return reader->Fail("response_format.json_schema",
                        holder == nullptr ? "is missing" : "must be an object");
  }
  ReadJsonSchema(*holder, "response_format.json_schema", out);
}

// One of the members of structured_outputs, or its older spelling on the top level.
void ReadStructuredOutput(FieldReader* reader, std::string_view name, std::string_view kind,
                          const std::string& path, ConstraintFields* out) {
  const JsonValue& value = *reader->Find(name);
  out->param = path;
  if (kind == "json") {
    out->kind = Kind::kJsonSchema;
    out->schema = value;
    // vLLM takes the schema as text, too.
    if (const std::string* text = value.IfString()) {
      Result<JsonValue> parsed = ParseJson(*text);
      if (!parsed.ok()) return reader->Fail(name, "is no JSON: " + parsed.status().message());
      out->schema = std::move(parsed).value();
    }
  } else if (kind == "regex" || kind == "grammar") {
    out->kind = kind == "regex" ? Kind::kRegex : Kind::kGrammar;
    out->text = reader->String(name).value_or("");
  } else if (kind == "choice") {
    out->kind = Kind::kChoice;
    if (value.IfArray() == nullptr) return reader->Fail(name, "must be a list of strings");
    out->choices = reader->Strings(name, kMaxChoices);
    if (reader->ok() && out->choices.empty()) reader->Fail(name, "must not be empty");
  } else if (kind == "json_object") {
    if (reader->Bool(name, false)) out->kind = Kind::kJsonObject;
  } else {
    reader->Refuse(name);
  }
}

void ReadStructuredOutputs(FieldReader* reader, ConstraintFields* out) {
  constexpr std::string_view kKinds[] = {"json",    "regex",       "choice",
                                         "grammar", "json_object", "structural_tag"};
  int given = 0;
  if (const JsonValue* outputs = reader->Object("structured_outputs")) {
    FieldReader inner(*outputs, "structured_outputs");
    for (const std::string_view kind : kKinds) {
      if (outputs->FindNonNull(kind) == nullptr) continue;
      ++given;
      ReadStructuredOutput(&inner, kind, kind, "structured_outputs." + std::string(kind), out);
    }
    if (given != 1) {
      return reader->Fail("structured_outputs",
                          "needs exactly one of json, regex, choice, grammar, json_object, "
                          "structural_tag, got " +
                              std::to_string(given));
    }
    reader->Merge(inner.error());
  }
  for (const std::string_view kind : kKinds) {
    const std::string name = "guided_" + std::string(kind);
    if (reader->Find(name) == nullptr) continue;
    if (++given > 1) return reader->Fail(name, "excludes the other output constraints");
    ReadStructuredOutput(reader, name, kind, name, out);
  }
}

void ReadConstraint(FieldReader* reader, const RequestLimits& limits, ConstraintFields* out) {
  if (reader->Find("allowed_token_ids") != nullptr) {
    out->allowed_tokens = reader->TokenIds("allowed_token_ids", limits.vocab_size);
    if (reader->ok() && out->allowed_tokens.empty()) {
      reader->Fail("allowed_token_ids", "must not be empty");
    }
  }
  out->bad_words = reader->Strings("bad_words", kMaxBadWords);
  ReadResponseFormat(reader, out);
  const bool has_format = out->kind != Kind::kNone;
  ConstraintFields structured;
  ReadStructuredOutputs(reader, &structured);
  if (structured.kind != Kind::kNone) {
    if (has_format) {
      return reader->Fail(structured.param, "and response_format exclude each other");
    }
    out->kind = structured.kind;
    out->param = std::move(structured.param);
    out->schema = std::move(structured.schema);
    out->text = std::move(structured.text);
    out->choices = std::move(structured.choices);
  }
  out->thinking_token_budget = reader->Int("thinking_token_budget", -1, kInt64Max);
  if (out->thinking_token_budget == -1) out->thinking_token_budget.reset();
}

void ReadPromptLogprobs(FieldReader* reader, const RequestLimits& limits, CommonFields* fields) {
  const std::optional<int64_t> count = reader->Int("prompt_logprobs", -1, kInt64Max);
  if (!count) return;
  if (fields->stream && *count != 0) {
    return reader->Fail("prompt_logprobs", "is not allowed with stream: true");
  }
  if (*count < 0 || *count > limits.max_logprobs) {
    return reader->Fail("prompt_logprobs", "must be from 0 to " +
                                               std::to_string(limits.max_logprobs) +
                                               " (--max-logprobs), got " + std::to_string(*count));
  }
  fields->num_prompt_logprobs = static_cast<int>(*count);
}

void ReadSamples(FieldReader* reader, CommonFields* fields) {
  fields->num_samples = static_cast<int>(reader->Int("n", 1, kMaxSamples).value_or(1));
  if (fields->num_samples > 1 && fields->sampling.temperature == 0.0) {
    reader->Fail("n", "must be 1 with temperature 0: all answers would be the same");
  }
  if (reader->Int("best_of", 1, kInt64Max).value_or(1) > 1) reader->Refuse("best_of");
  if (reader->Bool("use_beam_search", false)) reader->Fail("use_beam_search", "is not offered");
}

// What the answer tells besides its text.
void ReadReturns(FieldReader* reader, const RequestLimits& limits, CommonFields* fields) {
  fields->return_token_ids = reader->Bool("return_token_ids", false);
  fields->return_prompt_text = reader->Bool("return_prompt_text", false);
  fields->tokens_as_ids = reader->Bool("return_tokens_as_token_ids", limits.tokens_as_ids);
  if (reader->Find("kv_transfer_params") != nullptr) reader->Refuse("kv_transfer_params");
  (void)reader->String("session_id");
}

// What the scheduler and the prefix cache go by.
void ReadScheduling(FieldReader* reader, const RequestLimits& limits, CommonFields* fields) {
  fields->user = reader->String("user").value_or("");
  if (auto salt = reader->String("cache_salt")) {
    const bool bad = salt->empty() || salt->size() > 128 ||
                     salt->find_first_of(std::string_view("@/\\\0", 4)) != std::string::npos;
    if (bad) reader->Fail("cache_salt", "must be 1 to 128 characters without @, /, \\ and NUL");
    fields->cache_salt = std::move(*salt);
  }
  const auto priority =
      reader->Int("priority", std::numeric_limits<int>::min(), std::numeric_limits<int>::max());
  fields->priority = static_cast<int>(priority.value_or(0));
  if (fields->priority != 0 && !limits.priority_scheduling) {
    reader->Fail("priority", "must be 0, got " + std::to_string(fields->priority) +
                                 ": priority scheduling is not enabled");
  }
}

void ReadCommon(FieldReader* reader, const RequestLimits& limits, CommonFields* fields) {
  fields->model = reader->String("model").value_or("");
  fields->request_id = reader->String("request_id").value_or("");
  ReadSampling(reader, limits, &fields->sampling);
  fields->min_tokens = reader->Int("min_tokens", 0, kInt64Max).value_or(0);
  if (fields->max_tokens && fields->min_tokens > *fields->max_tokens) {
    reader->Fail("min_tokens", "must not be larger than the maximum of " +
                                   std::to_string(*fields->max_tokens) + " tokens");
  }
  fields->stop_token_ids = reader->TokenIds("stop_token_ids", limits.vocab_size);
  fields->ignore_eos = reader->Bool("ignore_eos", false);
  fields->stop = reader->Strings("stop", kMaxStopStrings);
  fields->include_stop_in_output = reader->Bool("include_stop_str_in_output", false);
  fields->truncate_prompt_tokens = reader->Int("truncate_prompt_tokens", -1, kInt64Max);
  ReadStreaming(reader, fields);
  ReadScheduling(reader, limits, fields);
  ReadSamples(reader, fields);
  ReadConstraint(reader, limits, &fields->constraint);
  ReadPromptLogprobs(reader, limits, fields);
  ReadReturns(reader, limits, fields);
}

MaybeError ReadPrompt(const JsonValue& value, const std::string& path, int vocab_size,
                      CompletionFields* fields) {
  if (const std::string* text = value.IfString()) {
    if (text->empty()) return BadRequest(path, path + " must not be empty");
    fields->prompts.emplace_back(*text);
    return std::nullopt;
  }
  std::vector<TokenId> ids;
  if (MaybeError error = ReadTokenIds(value, path, vocab_size, &ids)) return error;
  if (ids.empty()) return BadRequest(path, path + " must not be empty");
  fields->prompts.emplace_back(std::move(ids));
  return std::nullopt;
}

// A text, a list of ids, or a list of either.
MaybeError ReadPrompts(const JsonValue* value, int vocab_size, CompletionFields* fields) {
  const std::string path = "prompt";
  if (value == nullptr) return BadRequest(path, "prompt is missing");
  const JsonValue::Array* items = value->IfArray();
  if (items == nullptr && value->IfString() == nullptr) {
    return BadRequest(
        path,
        "prompt must be a string, a list of strings, a list of token ids or a list of "
        "such lists");
  }
  if (items == nullptr || items->empty() || items->front().is_number()) {
    return ReadPrompt(*value, path, vocab_size, fields);
  }
  if (items->size() > kMaxPrompts) {
    return BadRequest(path, "prompt may hold at most " + std::to_string(kMaxPrompts) + " prompts");
  }
  for (size_t i = 0; i < items->size(); ++i) {
    MaybeError error = ReadPrompt((*items)[i], path + "." + std::to_string(i), vocab_size, fields);
    if (error) return error;
  }
  return std::nullopt;
}

}  // namespace

MaybeError ReadChatFields(const JsonValue& body, const RequestLimits& limits, ChatFields* fields) {
  FieldReader reader(body);
  fields->max_tokens = reader.Int("max_completion_tokens", 1, kInt64Max);
  const std::optional<int64_t> max_tokens = reader.Int("max_tokens", 1, kInt64Max);
  if (!fields->max_tokens) fields->max_tokens = max_tokens;
  ReadCommon(&reader, limits, fields);

  const bool logprobs = reader.Bool("logprobs", false);
  const int64_t top = reader.Int("top_logprobs", 0, limits.max_logprobs).value_or(0);
  if (top > 0 && !logprobs) reader.Fail("top_logprobs", "needs logprobs: true");
  if (logprobs) fields->num_logprobs = static_cast<int>(top);

  fields->include_reasoning = reader.Bool("include_reasoning", true);
  fields->parallel_tool_calls = reader.Bool("parallel_tool_calls", true);
  (void)reader.Bool("add_special_tokens", false);
  (void)reader.Bool("skip_special_tokens", true);  // the reasoning reader needs them all
  fields->echo = reader.Bool("echo", false);
  if (reader.Find("chat_template") != nullptr) reader.Fail("chat_template", "is not offered");
  return reader.error();
}

MaybeError ReadCompletionFields(const JsonValue& body, const RequestLimits& limits,
                                CompletionFields* fields) {
  FieldReader reader(body);
  fields->echo = reader.Bool("echo", false);
  fields->max_tokens =
      reader.Int("max_tokens", fields->echo ? 0 : 1, kInt64Max).value_or(kDefaultCompletionTokens);
  ReadCommon(&reader, limits, fields);
  if (const auto count = reader.Int("logprobs", 0, limits.max_logprobs)) {
    fields->num_logprobs = static_cast<int>(*count);
    if (fields->echo) fields->num_prompt_logprobs = fields->num_logprobs;
  }
  fields->add_special_tokens = reader.Bool("add_special_tokens", true);
  fields->skip_special_tokens = reader.Bool("skip_special_tokens", true);
  if (const auto suffix = reader.String("suffix"); suffix && !suffix->empty()) {
    reader.Fail("suffix", "is not supported");
  }
  if (reader.ok()) reader.Merge(ReadPrompts(body.FindNonNull("prompt"), limits.vocab_size, fields));
  if (fields->prompts.size() * static_cast<size_t>(fields->num_samples) > kMaxAnswers) {
    reader.Fail("n", "times the number of prompts must be at most " + std::to_string(kMaxAnswers));
  }
  return reader.error();
}

}  // namespace fathom
