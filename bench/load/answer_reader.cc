#include "bench/load/answer_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace fathom::load {
namespace {

using Json = nlohmann::json;

// Null when absent, for any kind of `object`.
const Json* Find(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool HasText(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_string() && !value->get_ref<const std::string&>().empty();
}

// Leaves `out` as it is where there is no such count.
void ReadCount(const Json& object, const char* name, int64_t* out) {
  constexpr int64_t kMost = int64_t{1} << 40;  // sums of them stay in range
  const Json* value = Find(object, name);
  if (value == nullptr || !value->is_number_integer()) return;
  *out = value->is_number_unsigned()
             ? static_cast<int64_t>(std::min(value->get<uint64_t>(), static_cast<uint64_t>(kMost)))
             : std::max<int64_t>(value->get<int64_t>(), 0);
}

void ReadOpenAiUsage(const Json& usage, AnswerUsage* out) {
  out->is_known = true;
  ReadCount(usage, "prompt_tokens", &out->prompt_tokens);
  ReadCount(usage, "completion_tokens", &out->output_tokens);
  if (const Json* details = Find(usage, "prompt_tokens_details")) {
    ReadCount(*details, "cached_tokens", &out->cached_tokens);
  }
}

// Counts what comes from the cache apart from the rest of the prompt.
void ReadMessagesUsage(const Json& usage, AnswerUsage* out) {
  out->is_known = true;
  int64_t fresh = -1, cached = 0, written = 0;
  ReadCount(usage, "input_tokens", &fresh);
  ReadCount(usage, "cache_read_input_tokens", &cached);
  ReadCount(usage, "cache_creation_input_tokens", &written);
  if (fresh >= 0) {
    out->prompt_tokens = fresh + cached + written;
    out->cached_tokens = cached;
  }
  ReadCount(usage, "output_tokens", &out->output_tokens);
}

bool HasItems(const Json& object, const char* name) {
  const Json* value = Find(object, name);
  return value != nullptr && value->is_array() && !value->empty();
}

std::string MessageOf(const Json& error) {
  if (error.is_string()) return error.get<std::string>();
  if (HasText(error, "message")) return error.at("message").get<std::string>();
  return error.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string_view EndpointName(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat:
      return "chat";
    case Endpoint::kCompletions:
      return "completions";
    case Endpoint::kMessages:
      break;
  }
  return "messages";
}

std::string_view EndpointPath(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kChat:
      return "/v1/chat/completions";
    case Endpoint::kCompletions:
      return "/v1/completions";
    case Endpoint::kMessages:
      break;
  }
  return "/v1/messages";
}

AnswerReader::Saw AnswerReader::Read(std::string_view data) {
  if (endpoint_ != Endpoint::kMessages && data == "[DONE]") return Saw::kEnd;
  const Json json = Json::parse(data, nullptr, false);
  if (!json.is_object()) return Saw::kMalformed;
  if (const Json* error = Find(json, "error")) {
    error_ = MessageOf(*error);
    return Saw::kError;
  }
  bool has_content = false;
  const auto take = [&](const Json& object, const char* name, bool is_answer) {
    if (!HasText(object, name)) return;
    has_content = true;
    if (is_answer && keep_text_) text_ += object.at(name).get_ref<const std::string&>();
  };
  if (endpoint_ == Endpoint::kMessages) {
    if (const Json* message = Find(json, "message")) {
      if (const Json* usage = Find(*message, "usage")) ReadMessagesUsage(*usage, &usage_);
    }
    if (const Json* usage = Find(json, "usage")) ReadMessagesUsage(*usage, &usage_);
    if (const Json* delta = Find(json, "delta")) {
      take(*delta, "text", true);
      take(*delta, "thinking", false);
      take(*delta, "partial_json", false);
    }
    const Json* type = Find(json, "type");
    if (type != nullptr && *type == "message_stop") return Saw::kEnd;
    return has_content ? Saw::kContent : Saw::kNothing;
  }
  if (const Json* usage = Find(json, "usage")) ReadOpenAiUsage(*usage, &usage_);
  if (HasItems(json, "choices")) {
    for (const Json& choice : json.at("choices")) {
      take(choice, "text", true);
      const Json* delta = Find(choice, "delta");
      if (delta == nullptr) continue;
      take(*delta, "content", true);
      take(*delta, "reasoning", false);
      take(*delta, "reasoning_content", false);
      has_content = has_content || HasItems(*delta, "tool_calls");
    }
  }
  return has_content ? Saw::kContent : Saw::kNothing;
}

std::string ErrorMessage(std::string_view body) {
  constexpr size_t kMost = 300;
  const Json json = Json::parse(body, nullptr, false);
  const Json* error = json.is_discarded() ? nullptr : Find(json, "error");
  std::string text = error != nullptr ? MessageOf(*error) : std::string(body);
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

}  // namespace fathom::load
