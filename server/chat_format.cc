// The answers of /v1/chat/completions.
#include <utility>

#include "server/ids.h"
#include "server/json_text.h"
#include "server/openai_format.h"

namespace fathom {
namespace {

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(const AnswerHead& head, OpenAiOptions options)
      : chunk_head_(openai::ChunkHead(head, "chat.completion.chunk")),
        whole_head_(openai::WholeHead(head, "chat.completion")),
        options_(std::move(options)) {}

  void Begin(const Usage&, std::string*) override {}

  void BeginChoice(int choice, const PromptEcho& prompt, const ChunkExtras& extras,
                   std::string* out) override {
    BeginChunk(choice, out);
    *out += "\"role\":";
    AppendJsonString(options_.response_role, out);
    *out += ",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]";
    if (!prompt.token_ids.empty()) {
      *out += ",\"prompt_token_ids\":";
      openai::AppendTokenIds(prompt.token_ids, out);
    }
    if (prompt.text) {
      *out += ",\"prompt_text\":";
      AppendJsonString(*prompt.text, out);
    }
    EndChunk(extras, out);
  }

  void Delta(int choice, const OutputDelta& delta, const ChunkExtras& extras,
             std::string* out) override {
    BeginChunk(choice, out);
    switch (delta.kind) {
      case OutputDelta::Kind::kReasoning:
        AppendReasoning(JsonString(delta.text), out);
        break;
      case OutputDelta::Kind::kContent:
        *out += "\"content\":";
        AppendJsonString(delta.text, out);
        break;
      case OutputDelta::Kind::kToolCall:
        *out += "\"tool_calls\":[{\"index\":";
        AppendJsonInt(delta.call, out);
        *out +=
            ",\"id\":\"" + NewId("call_", 24) + "\",\"type\":\"function\",\"function\":{\"name\":";
        AppendJsonString(delta.text, out);
        *out += ",\"arguments\":\"\"}}]";
        break;
      case OutputDelta::Kind::kToolArguments:
        *out += "\"tool_calls\":[{\"index\":";
        AppendJsonInt(delta.call, out);
        *out += ",\"function\":{\"arguments\":";
        AppendJsonString(delta.text, out);
        *out += "}}]";
        break;
    }
    out->push_back('}');
    AppendExtras(extras, out);
    *out += ",\"finish_reason\":null}]";
    EndChunk(extras, out);
  }

  void EndChoice(int choice, const ChoiceEnd& end, const ChunkExtras& extras,
                 std::string* out) override {
    BeginChunk(choice, out);
    out->push_back('}');
    AppendExtras(extras, out);
    AppendEnd(end, out);
    *out += "}]";
    EndChunk(extras, out);
  }

  void End(const Usage& usage, std::string* out) override {
    openai::AppendStreamEnd(chunk_head_, options_.include_usage ? &usage : nullptr, out);
  }

  void Error(const RequestError& error, std::string* out) override {
    openai::AppendStreamError(error, out);
  }

  std::string Whole(const std::vector<Choice>& choices, const Usage& usage) override {
    std::string out = whole_head_ + ",\"choices\":[";
    for (size_t i = 0; i < choices.size(); ++i) {
      if (i > 0) out.push_back(',');
      AppendChoice(static_cast<int64_t>(i), choices[i], &out);
    }
    out += "],\"usage\":";
    openai::AppendUsage(usage, &out);
    out += ",\"system_fingerprint\":null";
    AppendPrompt(choices.front().prompt, &out);
    out.push_back('}');
    return out;
  }

 private:
  // Up to the members of the delta.
  void BeginChunk(int choice, std::string* out) const {
    out->append(chunk_head_).append(",\"choices\":[{\"index\":");
    AppendJsonInt(choice, out);
    *out += ",\"delta\":{";
  }

  static void EndChunk(const ChunkExtras& extras, std::string* out) {
    if (extras.usage != nullptr) {
      *out += ",\"usage\":";
      openai::AppendUsage(*extras.usage, out);
    }
    *out += "}\n\n";
  }

  void AppendExtras(const ChunkExtras& extras, std::string* out) const {
    *out += ",\"logprobs\":";
    AppendLogprobs(extras.logprobs, out);
    if (extras.token_ids != nullptr) {
      *out += ",\"token_ids\":";
      openai::AppendTokenIds(*extras.token_ids, out);
    }
  }

  static void AppendEnd(const ChoiceEnd& end, std::string* out) {
    *out += ",\"finish_reason\":";
    AppendJsonString(end.finish_reason, out);
    *out += ",\"stop_reason\":";
    openai::AppendStopReason(end, out);
  }

  // `json` is the value's text.
  void AppendReasoning(std::string_view json, std::string* out) const {
    const bool both = options_.reasoning_field == ReasoningField::kBoth;
    if (both || options_.reasoning_field == ReasoningField::kReasoning) {
      out->append("\"reasoning\":").append(json);
    }
    if (both) out->push_back(',');
    if (both || options_.reasoning_field == ReasoningField::kReasoningContent) {
      out->append("\"reasoning_content\":").append(json);
    }
  }

  void AppendChoice(int64_t index, const Choice& choice, std::string* out) const {
    const OutputMessage& message = choice.message;
    *out += "{\"index\":";
    AppendJsonInt(index, out);
    *out += ",\"message\":{\"role\":";
    AppendJsonString(options_.response_role, out);
    *out += ",\"content\":";
    *out += message.content.empty() ? "null" : JsonString(message.content);
    out->push_back(',');
    AppendReasoning(message.reasoning.empty() ? "null" : JsonString(message.reasoning), out);
    if (!message.calls.empty()) AppendCalls(message.calls, out);
    *out += ",\"refusal\":null},\"logprobs\":";
    AppendLogprobs(options_.logprobs ? &choice.logprobs : nullptr, out);
    AppendEnd(choice.end, out);
    if (options_.token_ids) {
      *out += ",\"token_ids\":";
      openai::AppendTokenIds(choice.token_ids, out);
    }
    out->push_back('}');
  }

  static void AppendCalls(const std::vector<OutputMessage::Call>& calls, std::string* out) {
    *out += ",\"tool_calls\":[";
    for (size_t i = 0; i < calls.size(); ++i) {
      if (i > 0) out->push_back(',');
      *out +=
          "{\"id\":\"" + NewId("call_", 24) + "\",\"type\":\"function\",\"function\":{\"name\":";
      AppendJsonString(calls[i].name, out);
      *out += ",\"arguments\":";
      AppendJsonString(calls[i].arguments, out);
      *out += "}}";
    }
    out->push_back(']');
  }

  void AppendPrompt(const PromptEcho& prompt, std::string* out) const {
    if (options_.prompt_logprobs) {
      *out += ",\"prompt_logprobs\":";
      openai::AppendPromptLogprobs(prompt, out);
    }
    if (!prompt.token_ids.empty()) {
      *out += ",\"prompt_token_ids\":";
      openai::AppendTokenIds(prompt.token_ids, out);
    }
    if (prompt.text) {
      *out += ",\"prompt_text\":";
      AppendJsonString(*prompt.text, out);
    }
  }

  void AppendToken(const LogprobEntry::Candidate& token, std::string* out) const {
    *out += "{\"token\":";
    AppendJsonString(openai::TokenText(token, options_.tokens_as_ids), out);
    *out += ",\"logprob\":";
    AppendJsonNumber(openai::FiniteLogprob(token.logprob), out);
    *out += ",\"bytes\":[";
    for (size_t i = 0; i < token.bytes.size(); ++i) {
      if (i > 0) out->push_back(',');
      AppendJsonInt(static_cast<unsigned char>(token.bytes[i]), out);
    }
    out->push_back(']');
  }

  void AppendLogprobs(const std::vector<LogprobEntry>* entries, std::string* out) const {
    if (entries == nullptr || entries->empty()) {
      *out += "null";
      return;
    }
    *out += "{\"content\":[";
    for (size_t i = 0; i < entries->size(); ++i) {
      if (i > 0) out->push_back(',');
      const LogprobEntry& entry = (*entries)[i];
      AppendToken(entry.chosen, out);
      *out += ",\"top_logprobs\":[";
      for (size_t j = 0; j < entry.top.size(); ++j) {
        if (j > 0) out->push_back(',');
        AppendToken(entry.top[j], out);
        out->push_back('}');
      }
      *out += "]}";
    }
    *out += "]}";
  }

  const std::string chunk_head_, whole_head_;
  const OpenAiOptions options_;
};

}  // namespace

std::unique_ptr<AnswerFormat> NewChatFormat(AnswerHead head, OpenAiOptions options) {
  return std::make_unique<ChatFormat>(head, std::move(options));
}

}  // namespace fathom
