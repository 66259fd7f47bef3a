#include "server/answer_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// Token bytes may be part of a character; they become U+FFFD here.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json HeadJson(const AnswerHead& head, std::string_view object) {
  Json json;
  json["id"] = head.id;
  json["object"] = object;
  json["created"] = head.created;
  json["model"] = head.model;
  return json;
}

Json UsageJson(const Usage& usage) {
  Json json;
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"]["cached_tokens"] = usage.cached_tokens;
  json["completion_tokens_details"]["reasoning_tokens"] = usage.reasoning_tokens;
  json["prompt_cache_hit_tokens"] = usage.cached_tokens;
  json["prompt_cache_miss_tokens"] = usage.prompt_tokens - usage.cached_tokens;
  return json;
}

Json StopReasonJson(const ChoiceEnd& end) {
  if (const auto* token = std::get_if<TokenId>(&end.stop_reason)) return *token;
  if (const auto* text = std::get_if<std::string>(&end.stop_reason)) return *text;
  return nullptr;
}

// JSON has no infinities; clients expect the least value that vLLM gives.
double FiniteLogprob(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

bool IsUtf8(const std::string& bytes) {
  // The library's writer is the judge, so that both agree.
  return Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace) ==
         Json(bytes).dump(-1, ' ', false, Json::error_handler_t::ignore);
}

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(AnswerHead head, ReasoningField field) : head_(std::move(head)), field_(field) {}

  std::string RoleChunk(int choice, const Usage* usage) override {
    Json delta;
    delta["role"] = "assistant";
    delta["content"] = "";
    return Chunk(ChoiceJson(choice, std::move(delta), nullptr), usage);
  }

  std::string DeltaChunk(int choice, const OutputDelta& text,
                         const std::vector<LogprobEntry>* logprobs, const Usage* usage) override {
    Json delta;
    if (text.kind == OutputDelta::Kind::kReasoning) {
      SetReasoning(&delta, text.text);
    } else {
      delta["content"] = text.text;
    }
    return Chunk(ChoiceJson(choice, std::move(delta), logprobs), usage);
  }

  std::string EndChunk(int choice, const ChoiceEnd& end, const std::vector<LogprobEntry>* logprobs,
                       const Usage* usage) override {
    Json json = ChoiceJson(choice, Json::object(), logprobs);
    json["finish_reason"] = end.finish_reason;
    json["stop_reason"] = StopReasonJson(end);
    return Chunk(std::move(json), usage);
  }

  std::string UsageChunk(const Usage& usage) override {
    Json json = HeadJson(head_, "chat.completion.chunk");
    json["choices"] = Json::array();
    json["usage"] = UsageJson(usage);
    return Dump(json);
  }

  std::string Whole(const std::vector<Choice>& choices, bool with_logprobs,
                    const Usage& usage) override {
    Json json = HeadJson(head_, "chat.completion");
    json["choices"] = Json::array();
    for (const Choice& choice : choices) {
      Json message;
      message["role"] = "assistant";
      message["content"] = choice.content.empty() ? Json() : Json(choice.content);
      SetReasoning(&message, choice.reasoning ? Json(*choice.reasoning) : Json());
      message["refusal"] = nullptr;
      Json item;
      item["index"] = json["choices"].size();
      item["message"] = std::move(message);
      item["logprobs"] = LogprobsJson(with_logprobs ? &choice.logprobs : nullptr);
      item["finish_reason"] = choice.end.finish_reason;
      item["stop_reason"] = StopReasonJson(choice.end);
      json["choices"].push_back(std::move(item));
    }
    json["usage"] = UsageJson(usage);
    json["system_fingerprint"] = nullptr;
    return Dump(json);
  }

 private:
  void SetReasoning(Json* json, const Json& value) const {
    if (field_ != ReasoningField::kReasoningContent) (*json)["reasoning"] = value;
    if (field_ != ReasoningField::kReasoning) (*json)["reasoning_content"] = value;
  }

  static Json ChoiceJson(int choice, Json delta, const std::vector<LogprobEntry>* logprobs) {
    Json json;
    json["index"] = choice;
    json["delta"] = std::move(delta);
    json["logprobs"] = LogprobsJson(logprobs);
    json["finish_reason"] = nullptr;
    return json;
  }

  std::string Chunk(Json choice, const Usage* usage) const {
    Json json = HeadJson(head_, "chat.completion.chunk");
    json["choices"] = Json::array({std::move(choice)});
    if (usage != nullptr) json["usage"] = UsageJson(*usage);
    return Dump(json);
  }

  static Json CandidateJson(const LogprobEntry::Candidate& candidate) {
    Json json;
    json["token"] = candidate.bytes;
    json["logprob"] = FiniteLogprob(candidate.logprob);
    json["bytes"] = Json::array();
    for (const char byte : candidate.bytes)
      json["bytes"].push_back(static_cast<unsigned char>(byte));
    return json;
  }

  static Json LogprobsJson(const std::vector<LogprobEntry>* entries) {
    if (entries == nullptr || entries->empty()) return nullptr;
    Json json;
    json["content"] = Json::array();
    for (const LogprobEntry& entry : *entries) {
      Json item = CandidateJson(entry.chosen);
      item["top_logprobs"] = Json::array();
      for (const auto& candidate : entry.top)
        item["top_logprobs"].push_back(CandidateJson(candidate));
      json["content"].push_back(std::move(item));
    }
    return json;
  }

  const AnswerHead head_;
  const ReasoningField field_;
};

class CompletionFormat final : public AnswerFormat {
 public:
  explicit CompletionFormat(AnswerHead head) : head_(std::move(head)) {}

  std::string RoleChunk(int, const Usage*) override { return {}; }

  std::string DeltaChunk(int choice, const OutputDelta& delta,
                         const std::vector<LogprobEntry>* logprobs, const Usage* usage) override {
    Json json = ChoiceJson(choice, delta.text, logprobs);
    return Chunk(std::move(json), usage);
  }

  std::string EndChunk(int choice, const ChoiceEnd& end, const std::vector<LogprobEntry>* logprobs,
                       const Usage* usage) override {
    Json json = ChoiceJson(choice, "", logprobs);
    json["finish_reason"] = end.finish_reason;
    json["stop_reason"] = StopReasonJson(end);
    return Chunk(std::move(json), usage);
  }

  std::string UsageChunk(const Usage& usage) override {
    Json json = HeadJson(head_, "text_completion");
    json["choices"] = Json::array();
    json["usage"] = UsageJson(usage);
    return Dump(json);
  }

  std::string Whole(const std::vector<Choice>& choices, bool with_logprobs,
                    const Usage& usage) override {
    Json json = HeadJson(head_, "text_completion");
    json["choices"] = Json::array();
    for (const Choice& choice : choices) {
      const int index = static_cast<int>(json["choices"].size());
      Json item = ChoiceJson(index, choice.content, with_logprobs ? &choice.logprobs : nullptr);
      item["finish_reason"] = choice.end.finish_reason;
      item["stop_reason"] = StopReasonJson(choice.end);
      json["choices"].push_back(std::move(item));
    }
    json["usage"] = UsageJson(usage);
    json["system_fingerprint"] = nullptr;
    return Dump(json);
  }

 private:
  // Offsets count characters of all tokens of a choice, over its chunks.
  Json ChoiceJson(int choice, std::string_view text, const std::vector<LogprobEntry>* logprobs) {
    if (choice != offset_choice_) {
      offset_choice_ = choice;
      offset_ = 0;
    }
    Json json;
    json["index"] = choice;
    json["text"] = text;
    json["logprobs"] = LogprobsJson(logprobs);
    json["finish_reason"] = nullptr;
    json["stop_reason"] = nullptr;
    return json;
  }

  std::string Chunk(Json choice, const Usage* usage) const {
    Json json = HeadJson(head_, "text_completion");
    json["choices"] = Json::array({std::move(choice)});
    if (usage != nullptr) json["usage"] = UsageJson(*usage);
    return Dump(json);
  }

  // Names of a map must differ, so a part of a character is written as its bytes, as OpenAI does.
  static std::string TokenName(const std::string& bytes) {
    if (IsUtf8(bytes)) return bytes;
    static constexpr char kHex[] = "0123456789abcdef";
    std::string name = "bytes:";
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      name.append("\\x").push_back(kHex[byte >> 4]);
      name.push_back(kHex[byte & 15]);
    }
    return name;
  }

  Json LogprobsJson(const std::vector<LogprobEntry>* entries) {
    if (entries == nullptr || entries->empty()) return nullptr;
    Json json;
    for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      json[name] = Json::array();
    }
    for (const LogprobEntry& entry : *entries) {
      json["tokens"].push_back(TokenName(entry.chosen.bytes));
      json["token_logprobs"].push_back(FiniteLogprob(entry.chosen.logprob));
      Json top = Json::object();
      top[TokenName(entry.chosen.bytes)] = FiniteLogprob(entry.chosen.logprob);
      for (const auto& candidate : entry.top) {
        top[TokenName(candidate.bytes)] = FiniteLogprob(candidate.logprob);
      }
      json["top_logprobs"].push_back(std::move(top));
      json["text_offset"].push_back(offset_);
      offset_ += std::count_if(entry.chosen.bytes.begin(), entry.chosen.bytes.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
      });
    }
    return json;
  }

  const AnswerHead head_;
  int offset_choice_ = -1;
  int64_t offset_ = 0;
};

Json ModelObject(const std::string& name, int64_t created, int64_t max_model_len) {
  Json json;
  json["id"] = name;
  json["object"] = "model";
  json["created"] = created;
  json["owned_by"] = "fathom";
  json["root"] = name;
  json["parent"] = nullptr;
  json["max_model_len"] = max_model_len;
  json["permission"] = Json::array();
  return json;
}

}  // namespace

std::unique_ptr<AnswerFormat> NewChatFormat(AnswerHead head, ReasoningField reasoning_field) {
  return std::make_unique<ChatFormat>(std::move(head), reasoning_field);
}

std::unique_ptr<AnswerFormat> NewCompletionFormat(AnswerHead head) {
  return std::make_unique<CompletionFormat>(std::move(head));
}

std::string ModelListJson(const std::vector<std::string>& names, int64_t created,
                          int64_t max_model_len) {
  Json json;
  json["object"] = "list";
  json["data"] = Json::array();
  for (const std::string& name : names) {
    json["data"].push_back(ModelObject(name, created, max_model_len));
  }
  return Dump(json);
}

std::string ModelJson(const std::string& name, int64_t created, int64_t max_model_len) {
  return Dump(ModelObject(name, created, max_model_len));
}

}  // namespace fathom
