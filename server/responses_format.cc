// The answers of OpenAI's /v1/responses.
//
// The output is a list of items: reasoning, messages, function calls. A stream opens one, sends its
// deltas and closes it before the next begins, and ends with the whole response. Reasoning is a
// part like any other (response.content_part.added): the official client knows no reasoning_part
// events, which other servers send, and its stream helper throws at events that it does not know.
#include <optional>
#include <utility>

#include "server/ids.h"
#include "server/json_text.h"
#include "server/openai_format.h"

namespace fathom {
namespace {

using Kind = OutputDelta::Kind;

// An output item, open or done.
struct Item {
  Kind kind = Kind::kContent;  // kReasoning, kContent or kToolCall
  std::string id, call_id, name;
  std::string text;  // of a call its arguments
  bool complete = true;
};

std::string PartJson(const Item& item, std::string_view text) {
  if (item.kind == Kind::kReasoning) {
    return "{\"type\":\"reasoning_text\",\"text\":" + JsonString(text) + "}";
  }
  return "{\"type\":\"output_text\",\"text\":" + JsonString(text) +
         ",\"annotations\":[],\"logprobs\":[]}";
}

std::string ItemJson(const Item& item, bool done) {
  const std::string_view status = !done           ? "in_progress"
                                  : item.complete ? "completed"
                                                  : "incomplete";
  std::string out = "{\"id\":" + JsonString(item.id) + ",\"type\":";
  switch (item.kind) {
    case Kind::kReasoning:
      out += "\"reasoning\",\"summary\":[],\"content\":[";
      if (done) out += PartJson(item, item.text);
      out += "]";
      break;
    case Kind::kContent:
      out += "\"message\",\"role\":\"assistant\",\"content\":[";
      if (done) out += PartJson(item, item.text);
      out += "]";
      break;
    default:
      out += "\"function_call\",\"call_id\":" + JsonString(item.call_id) +
             ",\"name\":" + JsonString(item.name) +
             ",\"arguments\":" + JsonString(done ? item.text : "");
      break;
  }
  out.append(",\"status\":\"").append(status).append("\"}");
  return out;
}

void AppendUsage(const Usage& usage, std::string* out) {
  *out += "{\"input_tokens\":";
  AppendJsonInt(usage.prompt_tokens, out);
  *out += ",\"input_tokens_details\":{\"cached_tokens\":";
  AppendJsonInt(usage.cached_tokens, out);
  *out += "},\"output_tokens\":";
  AppendJsonInt(usage.completion_tokens, out);
  *out += ",\"output_tokens_details\":{\"reasoning_tokens\":";
  AppendJsonInt(usage.reasoning_tokens, out);
  *out += "},\"total_tokens\":";
  AppendJsonInt(usage.prompt_tokens + usage.completion_tokens, out);
  out->push_back('}');
}

Item NewItem(Kind kind) {
  Item item;
  item.kind = kind;
  if (kind == Kind::kReasoning) {
    item.id = NewId("rs_");
  } else if (kind == Kind::kContent) {
    item.id = NewId("msg_");
  } else {
    item.id = NewId("fc_");
    item.call_id = NewId("call_", 24);
  }
  return item;
}

class ResponsesFormat final : public AnswerFormat {
 public:
  ResponsesFormat(AnswerHead head, std::string request_members)
      : head_(std::move(head)), request_members_(std::move(request_members)) {}

  void Begin(const Usage&, std::string* out) override {
    const std::string response = ResponseJson("in_progress", {}, nullptr);
    Event("response.created", "\"response\":" + response, out);
    Event("response.in_progress", "\"response\":" + response, out);
  }

  void BeginChoice(int, const PromptEcho&, const ChunkExtras&, std::string*) override {}

  void Delta(int, const OutputDelta& delta, const ChunkExtras&, std::string* out) override {
    if (delta.kind == Kind::kToolCall) {
      Close(out);
      Item item = NewItem(Kind::kToolCall);
      item.name = delta.text;
      return Open(std::move(item), out);
    }
    const Kind kind = delta.kind == Kind::kToolArguments ? Kind::kToolCall : delta.kind;
    if (!is_open_ || items_.back().kind != kind) {
      Close(out);
      Open(NewItem(kind), out);
    }
    Item& item = items_.back();
    item.text += delta.text;
    const std::string text = "\"delta\":" + JsonString(delta.text);
    switch (kind) {
      case Kind::kReasoning:
        return Event("response.reasoning_text.delta", InPart() + text, out);
      case Kind::kContent:
        return Event("response.output_text.delta", InPart() + text + ",\"logprobs\":[]", out);
      default:
        return Event("response.function_call_arguments.delta", InItem() + text, out);
    }
  }

  void EndChoice(int, const ChoiceEnd& end, const ChunkExtras&, std::string* out) override {
    end_ = end;
    if (is_open_) items_.back().complete = end.finish_reason != "length";
    Close(out);
  }

  void End(const Usage& usage, std::string* out) override {
    const std::string_view status = Status(end_);
    Event("response." + std::string(status),
          "\"response\":" + ResponseJson(status, OutputJson(items_), &usage), out);
  }

  void Error(const RequestError& error, std::string* out) override {
    failure_ = error.message;
    if (is_open_) items_.back().complete = false;
    Close(out);
    Event("response.failed", "\"response\":" + ResponseJson("failed", OutputJson(items_), nullptr),
          out);
  }

  std::string Whole(const std::vector<Choice>& choices, const Usage& usage) override {
    const Choice& choice = choices.front();
    const OutputMessage& message = choice.message;
    std::vector<Item> items;
    auto add = [&items](Kind kind, const std::string& text) {
      items.push_back(NewItem(kind));
      items.back().text = text;
    };
    if (!message.reasoning.empty()) add(Kind::kReasoning, message.reasoning);
    if (!message.content.empty()) add(Kind::kContent, message.content);
    for (const OutputMessage::Call& call : message.calls) {
      add(Kind::kToolCall, call.arguments);
      items.back().name = call.name;
    }
    if (!items.empty()) items.back().complete = choice.end.finish_reason != "length";
    end_ = choice.end;
    return ResponseJson(Status(end_), OutputJson(items), &usage);
  }

 private:
  static std::string_view Status(const ChoiceEnd& end) {
    return end.finish_reason == "length" ? "incomplete" : "completed";
  }

  static std::string OutputJson(const std::vector<Item>& items) {
    std::string out;
    for (const Item& item : items) {
      if (!out.empty()) out.push_back(',');
      out += ItemJson(item, /*done=*/true);
    }
    return out;
  }

  void Event(const std::string& type, const std::string& members, std::string* out) {
    out->append("event: ").append(type).append("\ndata: {\"type\":\"").append(type);
    *out += "\",\"sequence_number\":";
    AppendJsonInt(sequence_number_++, out);
    out->append(",").append(members).append("}\n\n");
  }

  // Members that name the open item and its one part.
  [[nodiscard]] std::string InItem() const {
    return "\"item_id\":" + JsonString(items_.back().id) +
           ",\"output_index\":" + std::to_string(items_.size() - 1) + ",";
  }
  [[nodiscard]] std::string InPart() const { return InItem() + "\"content_index\":0,"; }

  void Open(Item item, std::string* out) {
    items_.push_back(std::move(item));
    is_open_ = true;
    const Item& open = items_.back();
    Event("response.output_item.added",
          "\"output_index\":" + std::to_string(items_.size() - 1) +
              ",\"item\":" + ItemJson(open, /*done=*/false),
          out);
    if (open.kind == Kind::kToolCall) return;
    Event("response.content_part.added", InPart() + "\"part\":" + PartJson(open, ""), out);
  }

  void Close(std::string* out) {
    if (!std::exchange(is_open_, false)) return;
    const Item& item = items_.back();
    const std::string text = JsonString(item.text);
    const std::string part = "\"part\":" + PartJson(item, item.text);
    switch (item.kind) {
      case Kind::kReasoning:
        Event("response.reasoning_text.done", InPart() + "\"text\":" + text, out);
        Event("response.content_part.done", InPart() + part, out);
        break;
      case Kind::kContent:
        Event("response.output_text.done", InPart() + "\"text\":" + text + ",\"logprobs\":[]", out);
        Event("response.content_part.done", InPart() + part, out);
        break;
      default:
        Event("response.function_call_arguments.done",
              InItem() + "\"name\":" + JsonString(item.name) + ",\"arguments\":" + text, out);
        break;
    }
    Event("response.output_item.done",
          "\"output_index\":" + std::to_string(items_.size() - 1) +
              ",\"item\":" + ItemJson(item, /*done=*/true),
          out);
  }

  [[nodiscard]] std::string ResponseJson(std::string_view status, const std::string& output,
                                         const Usage* usage) const {
    std::string out = "{\"id\":" + JsonString(head_.id) +
                      ",\"object\":\"response\",\"created_at\":" + std::to_string(head_.created);
    out.append(",\"status\":\"").append(status).append("\",\"error\":");
    out += status == "failed"
               ? "{\"code\":\"server_error\",\"message\":" + JsonString(failure_) + "}"
               : "null";
    out += ",\"incomplete_details\":";
    out += status == "incomplete" ? "{\"reason\":\"max_output_tokens\"}" : "null";
    out += ",\"model\":" + JsonString(head_.model) + ",\"output\":[" + output + "]";
    if (!request_members_.empty()) out += "," + request_members_;
    out += ",\"usage\":";
    if (usage != nullptr) {
      AppendUsage(*usage, &out);
    } else {
      out += "null";
    }
    out.push_back('}');
    return out;
  }

  const AnswerHead head_;
  const std::string request_members_;
  int64_t sequence_number_ = 0;
  std::vector<Item> items_;  // the last one may be open
  bool is_open_ = false;
  ChoiceEnd end_;
  std::string failure_;
};

}  // namespace

std::unique_ptr<AnswerFormat> NewResponsesFormat(AnswerHead head, std::string request_members) {
  return std::make_unique<ResponsesFormat>(std::move(head), std::move(request_members));
}

}  // namespace fathom
