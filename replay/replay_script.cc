#include "replay/replay_script.h"

#include <algorithm>
#include <map>
#include <utility>

#include "chat/encoder.h"
#include "chat/json_parse.h"
#include "chat/markers.h"
#include "chat/message.h"
#include "replay/replay_fields.h"

namespace fathom {
namespace {

constexpr int64_t kMaxMilliseconds = 86'400'000;  // a day
constexpr int64_t kMaxTokens = int64_t{1} << 40;
// A step is not interrupted, and an abort must not wait long.
constexpr int64_t kMaxTokensPerStep = 1024;

std::optional<std::string> BytesOfHex(std::string_view hex) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (hex.empty() || hex.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]);
    const int low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes += static_cast<char>(high * 16 + low);
  }
  return bytes;
}

// Reads answers one after the other; they share the tokens added to the tokenizer.
class ScriptReader {
 public:
  explicit ScriptReader(Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Result<ReplayAnswer> ReadAnswer(const JsonValue& value, const JsonValue* defaults,
                                  std::string name, const std::string& where) {
    ReplayAnswer answer;
    answer.name = std::move(name);
    ReplayFields fields(value, defaults, where);
    if (value.IfObject() == nullptr) return fields.Finish();
    ReadCondition(fields, where, &answer);
    ReadSpeech(fields, where, &answer);
    ReadBehaviour(fields, &answer);
    CheckTogether(value, fields, answer);
    FATHOM_RETURN_IF_ERROR(fields.Finish());
    return answer;
  }

  // What `defaults` may hold.
  static void ReadBehaviour(ReplayFields& fields, ReplayAnswer* answer) {
    size_t choice = 0;
    fields.ReadChoice("finish", {"stop", "length", "abort"}, &choice);
    answer->finish = choice == 0   ? FinishReason::kStop
                     : choice == 1 ? FinishReason::kLength
                                   : FinishReason::kAborted;
    ReadDelay(fields, "first_token_delay_ms", &answer->first_token_delay);
    ReadDelay(fields, "token_delay_ms", &answer->token_delay);
    int64_t tokens_per_step = 1;
    fields.Read("tokens_per_step", 1, kMaxTokensPerStep, &tokens_per_step);
    answer->tokens_per_step = static_cast<int>(tokens_per_step);
    ReadCount(fields, "fail_after_tokens", &answer->fail_after_tokens);
    ReadCount(fields, "stall_after_tokens", &answer->stall_after_tokens);
    if (fields.Has("stall_ms")) ReadDelay(fields, "stall_ms", &answer->stall.emplace(0));
    if (fields.Has("submit_error")) {
      fields.ReadChoice("submit_error", {"queue_full", "shutting_down", "too_long", "internal"},
                        &choice);
      answer->submit_error = static_cast<ReplaySubmitError>(choice);
    }
    constexpr StatusCode kCodes[] = {StatusCode::kInternal,    StatusCode::kUnavailable,
                                     StatusCode::kOutOfMemory, StatusCode::kDataLoss,
                                     StatusCode::kCancelled,   StatusCode::kDeadlineExceeded};
    choice = 0;
    fields.ReadChoice(
        "error_status",
        {"internal", "unavailable", "out_of_memory", "data_loss", "cancelled", "deadline_exceeded"},
        &choice);
    std::string message = "scripted failure";
    fields.Read("error_message", &message);
    answer->error = Status(kCodes[choice], message);
    fields.Read("cached_tokens", 0, kMaxTokens, &answer->cached_tokens);
    double logprob = -0.1;
    fields.Read("logprob", -9999.0, 0.0, &logprob);
    answer->logprob = static_cast<float>(logprob);
  }

 private:
  static void ReadDelay(ReplayFields& fields, std::string_view name,
                        ReplayAnswer::Duration* delay) {
    double milliseconds = 0.0;
    fields.Read(name, 0.0, static_cast<double>(kMaxMilliseconds), &milliseconds);
    *delay = std::chrono::duration_cast<ReplayAnswer::Duration>(
        std::chrono::duration<double, std::milli>(milliseconds));
  }

  static void ReadCount(ReplayFields& fields, std::string_view name, std::optional<int64_t>* out) {
    if (fields.Has(name)) fields.Read(name, 0, kMaxTokens, &out->emplace(0));
  }

  static void ReadCondition(ReplayFields& fields, const std::string& where, ReplayAnswer* answer) {
    const JsonValue* when = fields.Find("when");
    if (when != nullptr) {
      ReplayFields parts(*when, nullptr, where + ".when");
      ReplayCondition& condition = answer->when.emplace();
      parts.Read("contains", &condition.contains);
      parts.Read("lacks", &condition.lacks);
      parts.Read("ends_with", &condition.ends_with);
      if (Status status = parts.Finish(); !status.ok()) fields.Fail(std::move(status));
    }
    answer->times = when == nullptr ? 1 : 0;
    fields.Read("times", 1, kMaxTokens, &answer->times);
  }

  void ReadSpeech(ReplayFields& fields, const std::string& where, ReplayAnswer* answer) {
    const JsonValue* tokens = fields.Find("tokens");
    const JsonValue* calls = fields.Find("tool_calls");
    const bool has_text = fields.Has("text");
    const bool has_message = fields.Has("content") || calls != nullptr;
    const bool has_reasoning = fields.Has("reasoning");
    fields.Read("endless", &answer->endless);
    const int num_forms = (has_text ? 1 : 0) + (tokens != nullptr ? 1 : 0) + (has_message ? 1 : 0);
    if (num_forms > 1 || (num_forms == 0 && !fields.Has("submit_error"))) {
      return fields.Fail(InvalidArgument(
          where + ": needs exactly one of text, tokens, and content with or without tool_calls"));
    }
    if (has_text) {
      std::string text;
      fields.Read("text", &text);
      Take(fields, "text", tokenizer_.Encode(text, AddedTokens::kMatch), &answer->tokens);
    }
    if (tokens != nullptr) ReadTokens(fields, *tokens, answer);
    if (has_message) ReadMessage(fields, calls, answer);
    // A message's content is content also where the prompt asks for reasoning and none is given.
    if (has_reasoning || (has_message && tokenizer_.FindAddedToken(markers::kThinkOpen))) {
      ReadReasoning(fields, answer);
    }
  }

  void ReadTokens(ReplayFields& fields, const JsonValue& value, ReplayAnswer* answer) {
    const JsonValue::Array* list = value.IfArray();
    if (list == nullptr) return fields.Fail(fields.Problem("tokens", "expected a list"));
    for (size_t i = 0; i < list->size(); ++i) {
      const JsonValue& item = (*list)[i];
      const std::string name = "tokens[" + std::to_string(i) + "]";
      std::optional<std::string> bytes;
      if (const std::string* text = item.IfString()) bytes = *text;
      if (const JsonValue* hex = item.Find("hex"); hex != nullptr && hex->IfString() != nullptr) {
        bytes = BytesOfHex(*hex->IfString());
      }
      if (bytes && !bytes->empty()) {
        Result<TokenId> id = TokenOf(*bytes, item.IfString() != nullptr);
        if (!id.ok()) return fields.Fail(fields.Problem(name, id.status().message()));
        answer->tokens.push_back(*id);
        continue;
      }
      const std::optional<int64_t> id = item.AsInt64();
      if (!id || *id < 0 || *id >= tokenizer_.vocab_size()) {
        return fields.Fail(fields.Problem(
            name, "expected text, {\"hex\": bytes} or a token id below " +
                      std::to_string(tokenizer_.vocab_size()) + ", none of them empty"));
      }
      answer->tokens.push_back(static_cast<TokenId>(*id));
    }
  }

  // The vocabulary's token for these bytes, or one of our own.
  Result<TokenId> TokenOf(const std::string& bytes, bool is_text) {
    if (const auto known = own_tokens_.find(bytes); known != own_tokens_.end()) {
      return known->second;
    }
    if (is_text) {
      FATHOM_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                              tokenizer_.Encode(bytes, AddedTokens::kMatch));
      if (ids.size() == 1) return ids.front();
    }
    FATHOM_ASSIGN_OR_RETURN(const TokenId id,
                            tokenizer_.AddOutputTokens(std::vector<std::string>{bytes}));
    own_tokens_.emplace(bytes, id);
    return id;
  }

  // As the official encoder writes such a message, so that parsing gives it back.
  void ReadMessage(ReplayFields& fields, const JsonValue* calls, ReplayAnswer* answer) {
    ChatMessage message;
    message.role = ChatRole::kAssistant;
    message.omit_eos = true;
    fields.Read("content", &message.content);
    if (calls != nullptr) {
      const JsonValue::Array* list = calls->IfArray();
      if (list == nullptr) return fields.Fail(fields.Problem("tool_calls", "expected a list"));
      for (size_t i = 0; i < list->size(); ++i) {
        const std::string name = "tool_calls[" + std::to_string(i) + "]";
        ReplayFields parts((*list)[i], nullptr, fields.where() + "." + name);
        ToolCall& call = message.tool_calls.emplace_back();
        parts.Read("name", &call.name);
        const JsonValue* arguments = parts.Find("arguments");
        if (call.name.empty()) parts.Fail(parts.Problem("name", "missing"));
        if (arguments != nullptr && arguments->IfObject() != nullptr) {
          call.arguments = *arguments->IfObject();
        } else {
          parts.Fail(parts.Problem("arguments", "expected an object"));
        }
        if (Status status = parts.Finish(); !status.ok()) return fields.Fail(std::move(status));
      }
    }
    EncodeOptions options;
    options.thinking_mode = ThinkingMode::kChat;
    options.add_bos = false;
    options.add_generation_header = false;
    const auto rendered = EncodeChat({&message, 1}, options);
    if (!rendered.ok()) return fields.Fail(rendered.status());
    std::vector<Segment> segments;
    for (const PromptSegment& s : *rendered) segments.push_back({s.text, s.from_template});
    Take(fields, "content", tokenizer_.EncodeSegments(segments), &answer->tokens);
  }

  void ReadReasoning(ReplayFields& fields, ReplayAnswer* answer) {
    if (!tokenizer_.FindAddedToken(markers::kThinkOpen)) {
      return fields.Fail(fields.Problem("reasoning", "the vocabulary has no think marks"));
    }
    std::vector<Segment> segments(2);
    fields.Read("reasoning", &segments[0].text);
    segments[1] = {std::string(markers::kThinkClose), true};
    Take(fields, "reasoning", tokenizer_.EncodeSegments(segments), &answer->reasoning);
  }

  static void Take(ReplayFields& fields, std::string_view name, Result<std::vector<TokenId>> ids,
                   std::vector<TokenId>* out) {
    if (!ids.ok()) return fields.Fail(fields.Problem(name, ids.status().message()));
    *out = std::move(ids).value();
  }

  // What would have no effect is a mistake.
  static void CheckTogether(const JsonValue& value, ReplayFields& fields,
                            const ReplayAnswer& answer) {
    const auto own = [&value](std::string_view name) { return value.Find(name) != nullptr; };
    if (answer.endless && answer.tokens.empty()) {
      fields.Fail(fields.Problem("endless", "there are no tokens to repeat"));
    }
    if (answer.endless && own("finish")) {
      fields.Fail(fields.Problem("finish", "has no effect with endless"));
    }
    if (own("stall_ms") && !answer.stall_after_tokens) {
      fields.Fail(fields.Problem("stall_ms", "has no effect without stall_after_tokens"));
    }
    if ((own("error_status") || own("error_message")) && !answer.fail_after_tokens &&
        answer.submit_error != ReplaySubmitError::kInternal) {
      fields.Fail(
          fields.Problem(own("error_status") ? "error_status" : "error_message",
                         "has no effect without fail_after_tokens or submit_error \"internal\""));
    }
  }

  Tokenizer& tokenizer_;
  std::map<std::string, TokenId, std::less<>> own_tokens_;  // added to it
};

Status ReadLines(std::string_view text, const std::string& source, ScriptReader& reader,
                 ReplayScript* script) {
  int64_t number = 0;
  while (!text.empty()) {
    ++number;
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = source + ":" + std::to_string(number);
    const auto value = ParseJson(line);
    if (!value.ok()) return InvalidArgument(where + ": " + value.status().message());
    FATHOM_ASSIGN_OR_RETURN(
        ReplayAnswer answer,
        reader.ReadAnswer(*value, nullptr, "line " + std::to_string(number), where));
    script->answers.push_back(std::move(answer));
  }
  return OkStatus();
}

Status ReadDocument(std::string_view text, const std::string& source, ScriptReader& reader,
                    ReplayScript* script) {
  const auto document = ParseJson(text);
  if (!document.ok()) return InvalidArgument(source + ": " + document.status().message());
  const JsonValue* answers = &*document;
  const JsonValue* defaults = nullptr;
  if (document->IfArray() == nullptr) {
    ReplayFields fields(*document, nullptr, source + ": file");
    if (document->IfObject() != nullptr) {
      size_t repeat = 0;
      fields.ReadChoice("repeat", {"last", "cycle", "refuse"}, &repeat);
      script->repeat = static_cast<ReplayRepeat>(repeat);
      defaults = fields.Find("defaults");
      answers = fields.Find("answers");
    }
    FATHOM_RETURN_IF_ERROR(fields.Finish());
    if (answers == nullptr || answers->IfArray() == nullptr) {
      return InvalidArgument(source + ": expected a list of answers, or an object with one");
    }
  }
  if (defaults != nullptr) {
    ReplayFields fields(*defaults, nullptr, source + ": defaults");
    ReplayAnswer unused;
    if (defaults->IfObject() != nullptr) ScriptReader::ReadBehaviour(fields, &unused);
    FATHOM_RETURN_IF_ERROR(fields.Finish());
  }
  for (size_t i = 0; i < answers->IfArray()->size(); ++i) {
    std::string name = "answers[" + std::to_string(i) + "]";
    const std::string where = source + ": " + name;
    FATHOM_ASSIGN_OR_RETURN(
        ReplayAnswer answer,
        reader.ReadAnswer((*answers->IfArray())[i], defaults, std::move(name), where));
    script->answers.push_back(std::move(answer));
  }
  return OkStatus();
}

}  // namespace

bool ReplayCondition::Holds(std::string_view prompt) const {
  const auto in_prompt = [prompt](const std::string& text) {
    return prompt.find(text) != std::string_view::npos;
  };
  return prompt.ends_with(ends_with) && std::all_of(contains.begin(), contains.end(), in_prompt) &&
         std::none_of(lacks.begin(), lacks.end(), in_prompt);
}

bool ReplayScript::has_conditions() const {
  return std::any_of(answers.begin(), answers.end(),
                     [](const ReplayAnswer& answer) { return answer.when.has_value(); });
}

Result<ReplayScript> ParseReplayScript(std::string_view text, std::string_view source,
                                       Tokenizer& tokenizer) {
  ReplayScript script;
  const std::string name(source);
  ScriptReader reader(tokenizer);
  FATHOM_RETURN_IF_ERROR(source.ends_with(".jsonl") ? ReadLines(text, name, reader, &script)
                                                    : ReadDocument(text, name, reader, &script));
  if (script.answers.empty()) return InvalidArgument(name + ": no answers");
  script.think_token = tokenizer.FindAddedToken(markers::kThinkOpen).value_or(-1);
  return script;
}

}  // namespace fathom
