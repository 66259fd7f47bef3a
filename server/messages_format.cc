// The answers of Anthropic's /v1/messages.
//
// Content is a list of blocks. A stream opens one, sends its deltas and closes it before the next
// begins; clients refuse a delta that does not fit the open block.
#include <optional>
#include <utility>

#include "chat/json_parse.h"
#include "server/answer_format.h"
#include "server/ids.h"
#include "server/json_text.h"
#include "server/messages_error.h"

namespace fathom {
namespace {

// Anthropic signs its thinking blocks. Clients send the value back and never look into it.
constexpr std::string_view kSignature = "fathom";

using Kind = OutputDelta::Kind;

bool IsJsonObject(const std::string& text) {
  const Result<JsonValue> value = ParseJson(text);
  return value.ok() && value->IfObject() != nullptr;
}

std::string_view StopReason(const ChoiceEnd& end, bool has_calls) {
  if (end.finish_reason == "length" || end.finish_reason == "abort") return "max_tokens";
  if (std::holds_alternative<std::string>(end.stop_reason)) return "stop_sequence";
  return has_calls ? "tool_use" : "end_turn";
}

void AppendStop(const ChoiceEnd& end, std::string_view reason, std::string* out) {
  *out += "\"stop_reason\":";
  AppendJsonString(reason, out);
  *out += ",\"stop_sequence\":";
  const auto* text = std::get_if<std::string>(&end.stop_reason);
  if (text != nullptr && reason == "stop_sequence") {
    AppendJsonString(*text, out);
  } else {
    *out += "null";
  }
}

// Anthropic counts what was read from the cache apart from the other input.
void AppendUsage(const Usage& usage, std::string* out) {
  *out += "{\"input_tokens\":";
  AppendJsonInt(usage.prompt_tokens - usage.cached_tokens, out);
  *out += ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":";
  AppendJsonInt(usage.cached_tokens, out);
  *out += ",\"output_tokens\":";
  AppendJsonInt(usage.completion_tokens, out);
  out->push_back('}');
}

class MessagesFormat final : public AnswerFormat {
 public:
  explicit MessagesFormat(AnswerHead head) : head_(std::move(head)) {}

  void Begin(const Usage& usage, std::string* out) override {
    *out += "event: message_start\ndata: {\"type\":\"message_start\",\"message\":";
    AppendMessageHead(out);
    *out += ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":";
    AppendUsage(usage, out);
    *out += "}}\n\n";
  }

  void BeginChoice(int, const PromptEcho&, const ChunkExtras&, std::string*) override {}

  void Delta(int, const OutputDelta& delta, const ChunkExtras&, std::string* out) override {
    if (delta.kind == Kind::kToolCall) return OpenToolUse(delta.text, out);
    if (open_ != delta.kind) OpenText(delta.kind, out);
    switch (delta.kind) {
      case Kind::kReasoning:
        return AppendDelta("thinking_delta", "thinking", delta.text, out);
      case Kind::kContent:
        return AppendDelta("text_delta", "text", delta.text, out);
      default:
        arguments_ += delta.text;
        return AppendDelta("input_json_delta", "partial_json", delta.text, out);
    }
  }

  void EndChoice(int, const ChoiceEnd& end, const ChunkExtras&, std::string* out) override {
    CloseBlock(out);
    end_ = end;
  }

  void End(const Usage& usage, std::string* out) override {
    const std::string_view reason = broken_call_ ? "max_tokens" : StopReason(end_, has_calls_);
    *out += "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{";
    AppendStop(end_, reason, out);
    *out += "},\"usage\":";
    AppendUsage(usage, out);
    *out += "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
  }

  void Error(const RequestError& error, std::string* out) override {
    out->append("event: error\ndata: ").append(MessagesErrorBody(error)).append("\n\n");
  }

  [[nodiscard]] std::string_view KeepAlive() const override {
    return "event: ping\ndata: {\"type\":\"ping\"}\n\n";
  }

  std::string Whole(const std::vector<Choice>& choices, const Usage& usage) override {
    const Choice& choice = choices.front();
    const OutputMessage& message = choice.message;
    std::string blocks;
    auto add_block = [&blocks](std::string_view json) {
      if (!blocks.empty()) blocks.push_back(',');
      blocks += json;
    };
    if (!message.reasoning.empty()) {
      add_block("{\"type\":\"thinking\",\"thinking\":" + JsonString(message.reasoning) +
                ",\"signature\":" + JsonString(kSignature) + "}");
    }
    if (!message.content.empty()) {
      add_block("{\"type\":\"text\",\"text\":" + JsonString(message.content) + "}");
    }
    bool broken_call = false;
    bool has_calls = false;
    for (const OutputMessage::Call& call : message.calls) {
      if (!IsJsonObject(call.arguments)) {
        broken_call = true;  // cut off: it must not be run
        continue;
      }
      has_calls = true;
      add_block("{\"type\":\"tool_use\",\"id\":\"" + NewId("toolu_", 24) +
                "\",\"name\":" + JsonString(call.name) + ",\"input\":" + call.arguments + "}");
    }
    std::string out;
    AppendMessageHead(&out);
    out.append(",\"content\":[").append(blocks).append("],");
    AppendStop(choice.end, broken_call ? "max_tokens" : StopReason(choice.end, has_calls), &out);
    out += ",\"usage\":";
    AppendUsage(usage, &out);
    out.push_back('}');
    return out;
  }

  [[nodiscard]] http::Response Failure(const RequestError& error) const override {
    return MessagesErrorResponse(error);
  }

 private:
  // Without the closing brace.
  void AppendMessageHead(std::string* out) const {
    *out += "{\"id\":";
    AppendJsonString(head_.id, out);
    *out += ",\"type\":\"message\",\"role\":\"assistant\",\"model\":";
    AppendJsonString(head_.model, out);
  }

  void BeginBlock(std::string* out) {
    CloseBlock(out);
    *out += "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":";
    AppendJsonInt(index_, out);
    *out += ",\"content_block\":{\"type\":";
  }

  void OpenText(Kind kind, std::string* out) {
    BeginBlock(out);
    *out += kind == Kind::kReasoning ? "\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n"
                                     : "\"text\",\"text\":\"\"}}\n\n";
    open_ = kind;
  }

  void OpenToolUse(std::string_view name, std::string* out) {
    BeginBlock(out);
    *out += "\"tool_use\",\"id\":\"" + NewId("toolu_", 24) + "\",\"name\":";
    AppendJsonString(name, out);
    *out += ",\"input\":{}}}\n\n";
    open_ = Kind::kToolArguments;
    has_calls_ = true;
    arguments_.clear();
  }

  void AppendDelta(std::string_view type, std::string_view member, std::string_view text,
                   std::string* out) const {
    *out += "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":";
    AppendJsonInt(index_, out);
    out->append(",\"delta\":{\"type\":\"").append(type).append("\",\"").append(member);
    *out += "\":";
    AppendJsonString(text, out);
    *out += "}}\n\n";
  }

  void CloseBlock(std::string* out) {
    if (!open_) return;
    if (open_ == Kind::kReasoning) AppendDelta("signature_delta", "signature", kSignature, out);
    if (open_ == Kind::kToolArguments && !IsJsonObject(arguments_)) broken_call_ = true;
    *out += "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":";
    AppendJsonInt(index_, out);
    *out += "}\n\n";
    ++index_;
    open_.reset();
  }

  const AnswerHead head_;
  std::optional<Kind> open_;  // kind of the open block's deltas
  int index_ = 0;             // of the open block, or of the next one
  bool has_calls_ = false;
  bool broken_call_ = false;  // arguments that are no JSON object: the answer was cut off
  std::string arguments_;     // of the open call
  ChoiceEnd end_;
};

}  // namespace

std::unique_ptr<AnswerFormat> NewMessagesFormat(AnswerHead head) {
  return std::make_unique<MessagesFormat>(std::move(head));
}

}  // namespace fathom
