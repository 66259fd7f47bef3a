#include "server/responses_request.h"

#include <string_view>
#include <utility>

#include "chat/request_fields.h"
#include "server/json_build.h"
#include "server/json_text.h"

namespace fathom {
namespace {

using Array = JsonValue::Array;

// The text of a string or of a list of parts with text; parts of other types become a note.
MaybeError ReadOutputText(const JsonValue& value, const std::string& path, std::string* out) {
  if (const std::string* text = value.IfString()) {
    *out = *text;
    return std::nullopt;
  }
  const Array* parts = value.IfArray();
  if (parts == nullptr) return BadRequest(path, path + " must be a string or a list of parts");
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string part_path = path + "." + std::to_string(i);
    const JsonValue& part = (*parts)[i];
    if (part.IfObject() == nullptr) return BadRequest(part_path, part_path + " must be an object");
    std::optional<std::string> text, type;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(part, part_path + ".", "text", text));
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(part, part_path + ".", "type", type));
    if (i > 0) *out += "\n";
    *out += text ? *text : "[Unsupported " + type.value_or("unknown") + "]";
  }
  return std::nullopt;
}

// Items in order become messages. Reasoning, text and calls of one turn of the model are items of
// their own, and one assistant message.
class InputTranslation {
 public:
  InputTranslation(Array* out, FieldNames* names) : out_(out), names_(names) {}

  MaybeError Add(const JsonValue& item, const std::string& path) {
    if (item.IfObject() == nullptr) return BadRequest(path, path + " must be an object");
    std::optional<std::string> type;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(item, path + ".", "type", type));
    const std::string kind = type.value_or("message");
    if (kind == "message") return AddMessage(item, path);
    if (kind == "reasoning") return AddReasoning(item, path);
    if (kind == "function_call") return AddCall(item, path);
    if (kind == "function_call_output") return AddCallOutput(item, path);
    return BadRequest(path + ".type",
                      "input items of type " + QuoteForError(kind) + " are not supported");
  }

  void Finish() {
    if (!is_open_) return;
    is_open_ = false;
    if (content_) names_->Add("messages." + std::to_string(out_->size()), content_path_);
    JsonObjectBuilder message;
    message.SetText("role", "assistant");
    if (content_) message.Set("content", std::move(*content_));
    if (!reasoning_.empty()) message.SetText("reasoning", std::move(reasoning_));
    if (!calls_.empty()) message.Set("tool_calls", JsonValue::FromArray(std::move(calls_)));
    out_->push_back(message.Take());
    content_.reset();
    reasoning_.clear();
    calls_.clear();
  }

 private:
  MaybeError AddMessage(const JsonValue& item, const std::string& path) {
    std::optional<std::string> role;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(item, path + ".", "role", role));
    if (role != "user" && role != "assistant" && role != "system" && role != "developer") {
      return BadRequest(path + ".role", "role must be user, assistant, system or developer, not " +
                                            QuoteForError(role.value_or("")));
    }
    const JsonValue* content = item.FindNonNull("content");
    if (content == nullptr) return BadRequest(path + ".content", path + ".content is missing");
    if (role == "assistant") {
      // Text after a call, or a second text, is a turn of its own.
      if (content_ || !calls_.empty()) Finish();
      is_open_ = true;
      content_ = *content;
      content_path_ = path;
      return std::nullopt;
    }
    Finish();
    names_->Add("messages." + std::to_string(out_->size()), path);
    JsonObjectBuilder message;
    message.SetText("role", *role);
    message.Set("content", *content);
    out_->push_back(message.Take());
    return std::nullopt;
  }

  MaybeError AddReasoning(const JsonValue& item, const std::string& path) {
    std::string text;
    for (const char* key : {"content", "summary"}) {
      const JsonValue* parts = item.FindNonNull(key);
      if (parts == nullptr || !text.empty()) continue;
      FATHOM_RETURN_IF_REQUEST_ERROR(ReadOutputText(*parts, path + "." + key, &text));
    }
    if (content_ || !calls_.empty()) Finish();  // of the next turn
    is_open_ = true;
    reasoning_ += text;
    return std::nullopt;
  }

  MaybeError AddCall(const JsonValue& item, const std::string& path) {
    std::optional<std::string> id, name;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(item, path + ".", "call_id", id));
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(item, path + ".", "name", name));
    if (!id) return BadRequest(path + ".call_id", path + ".call_id is missing");
    if (!name) return BadRequest(path + ".name", path + ".name is missing");
    JsonObjectBuilder function, call;
    function.SetText("name", std::move(*name));
    function.Copy(item, "arguments");
    call.SetText("id", std::move(*id));
    call.SetText("type", "function");
    call.Set("function", function.Take());
    calls_.push_back(call.Take());
    is_open_ = true;
    return std::nullopt;
  }

  MaybeError AddCallOutput(const JsonValue& item, const std::string& path) {
    Finish();
    std::optional<std::string> id;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(item, path + ".", "call_id", id));
    if (!id) return BadRequest(path + ".call_id", path + ".call_id is missing");
    std::string text;
    if (const JsonValue* output = item.FindNonNull("output")) {
      FATHOM_RETURN_IF_REQUEST_ERROR(ReadOutputText(*output, path + ".output", &text));
    }
    JsonObjectBuilder message;
    message.SetText("role", "tool");
    message.SetText("tool_call_id", std::move(*id));
    message.SetText("content", std::move(text));
    out_->push_back(message.Take());
    return std::nullopt;
  }

  Array* const out_;
  FieldNames* const names_;
  // The assistant message that is being collected.
  bool is_open_ = false;
  std::optional<JsonValue> content_;
  std::string content_path_;  // of the item that it came in
  std::string reasoning_;
  Array calls_;
};

MaybeError TranslateInput(const JsonValue& body, JsonObjectBuilder* chat, FieldNames* names) {
  Array messages;
  std::optional<std::string> instructions;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(body, "", "instructions", instructions));
  if (instructions && !instructions->empty()) {
    JsonObjectBuilder message;
    message.SetText("role", "system");
    message.SetText("content", std::move(*instructions));
    messages.push_back(message.Take());
  }
  const JsonValue* input = body.FindNonNull("input");
  if (input == nullptr) return BadRequest("input", "input is missing");
  if (input->IfString() != nullptr) {
    JsonObjectBuilder message;
    message.SetText("role", "user");
    message.Set("content", *input);
    messages.push_back(message.Take());
  } else if (const Array* items = input->IfArray()) {
    if (items->empty()) return BadRequest("input", "input must not be empty");
    InputTranslation translation(&messages, names);
    for (size_t i = 0; i < items->size(); ++i) {
      FATHOM_RETURN_IF_REQUEST_ERROR(translation.Add((*items)[i], "input." + std::to_string(i)));
    }
    translation.Finish();
  } else {
    return BadRequest("input", "input must be a string or a list of items");
  }
  chat->Set("messages", JsonValue::FromArray(std::move(messages)));
  return std::nullopt;
}

MaybeError TranslateTools(const JsonValue& body, JsonObjectBuilder* chat) {
  const Array* tools = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalArray(body, "", "tools", tools));
  Array translated;
  for (size_t i = 0; tools != nullptr && i < tools->size(); ++i) {
    const std::string path = "tools." + std::to_string(i);
    const JsonValue& tool = (*tools)[i];
    if (tool.IfObject() == nullptr) return BadRequest(path, path + " must be an object");
    std::optional<std::string> type, name;
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(tool, path + ".", "type", type));
    if (type != "function") {
      return BadRequest(path + ".type",
                        "only function tools are offered, not " + QuoteForError(type.value_or("")));
    }
    FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(tool, path + ".", "name", name));
    if (!name) return BadRequest(path + ".name", path + ".name is missing");
    JsonObjectBuilder function, entry;
    for (const char* key : {"name", "description", "parameters", "strict"}) {
      function.Copy(tool, key);
    }
    entry.SetText("type", "function");
    entry.Set("function", function.Take());
    translated.push_back(entry.Take());
  }
  if (!translated.empty()) chat->Set("tools", JsonValue::FromArray(std::move(translated)));
  const JsonValue* choice = body.FindNonNull("tool_choice");
  if (choice == nullptr || choice->IfObject() == nullptr) {
    chat->Copy(body, "tool_choice");
    return std::nullopt;
  }
  std::optional<std::string> type, name;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(*choice, "tool_choice.", "type", type));
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(*choice, "tool_choice.", "name", name));
  if (type != "function" || !name) {
    return BadRequest("tool_choice",
                      "tool_choice must be a word or {\"type\": \"function\", \"name\": ...}");
  }
  JsonObjectBuilder function, named;
  function.SetText("name", std::move(*name));
  named.SetText("type", "function");
  named.Set("function", function.Take());
  chat->Set("tool_choice", named.Take());
  return std::nullopt;
}

MaybeError TranslateFormat(const JsonValue& body, JsonObjectBuilder* chat) {
  const JsonValue* text = nullptr;
  const JsonValue* format = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(body, "", "text", text));
  if (text == nullptr) return std::nullopt;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(*text, "text.", "format", format));
  if (format == nullptr) return std::nullopt;
  std::optional<std::string> type;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(*format, "text.format.", "type", type));
  if (type != "text" && type != "json_object" && type != "json_schema") {
    return BadRequest("text.format.type",
                      "text.format.type must be text, json_object or json_schema");
  }
  JsonObjectBuilder response_format;
  response_format.SetText("type", *type);
  if (type == "json_schema") {
    JsonObjectBuilder holder;
    holder.Copy(*format, "schema");
    response_format.Set("json_schema", holder.Take());
  }
  chat->Set("response_format", response_format.Take());
  return std::nullopt;
}

MaybeError CheckInclude(const JsonValue& body) {
  const Array* include = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalArray(body, "", "include", include));
  for (size_t i = 0; include != nullptr && i < include->size(); ++i) {
    const std::string* what = (*include)[i].IfString();
    const std::string path = "include." + std::to_string(i);
    if (what == nullptr) return BadRequest(path, path + " must be a string");
    // What this server does not encrypt it sends in the clear anyway.
    if (*what == "reasoning.encrypted_content") continue;
    RequestError error = NotSupported(path);
    error.message = "including " + QuoteForError(*what) + " is not supported by this version";
    return error;
  }
  return std::nullopt;
}

// Fields about keeping responses, and others without a counterpart.
MaybeError CheckRest(const JsonValue& body) {
  std::optional<bool> store, background;
  std::optional<std::string> previous, truncation;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(body, "", "store", store));
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(body, "", "background", background));
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(body, "", "previous_response_id", previous));
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptional(body, "", "truncation", truncation));
  if (background.value_or(false)) {
    return BadRequest("background", "background needs stored responses; this server keeps none");
  }
  if (previous) {
    return RequestError{404,
                        "no response " + QuoteForError(*previous) + ": this server keeps none",
                        "previous_response_id",
                        {}};
  }
  if (truncation && *truncation != "auto" && *truncation != "disabled") {
    return BadRequest("truncation",
                      "truncation must be auto or disabled, not " + QuoteForError(*truncation));
  }
  if (body.FindNonNull("prompt") != nullptr) {
    return BadRequest("prompt", "prompt templates are not offered");
  }
  const JsonValue* top_logprobs = body.FindNonNull("top_logprobs");
  if (top_logprobs != nullptr && top_logprobs->AsInt64() != 0) return NotSupported("top_logprobs");
  return CheckInclude(body);
}

// A member of the response: the request's value, or what stands for its absence.
void Repeat(const JsonValue& body, std::string_view key, std::string_view absent,
            std::string* out) {
  const JsonValue* value = body.FindNonNull(key);
  if (!out->empty()) out->push_back(',');
  AppendJsonString(key, out);
  out->push_back(':');
  *out += value == nullptr ? std::string(absent) : ToPythonJson(*value);
}

}  // namespace

MaybeError TranslateResponses(const JsonValue& body, JsonValue* out, std::string* repeated,
                              FieldNames* names) {
  FATHOM_RETURN_IF_REQUEST_ERROR(CheckRest(body));
  JsonObjectBuilder chat;
  FATHOM_RETURN_IF_REQUEST_ERROR(TranslateInput(body, &chat, names));
  FATHOM_RETURN_IF_REQUEST_ERROR(TranslateTools(body, &chat));
  FATHOM_RETURN_IF_REQUEST_ERROR(TranslateFormat(body, &chat));
  const JsonValue* reasoning = nullptr;
  FATHOM_RETURN_IF_REQUEST_ERROR(ReadOptionalObject(body, "", "reasoning", reasoning));
  if (reasoning != nullptr) chat.Copy(*reasoning, "effort", "reasoning_effort");
  const JsonValue* truncation = body.FindNonNull("truncation");
  if (truncation != nullptr && *truncation->IfString() == "auto") {
    chat.Set("truncate_prompt_tokens", JsonValue::NumberFromText("-1"));
  }
  chat.Copy(body, "max_output_tokens", "max_tokens");
  for (const char* name :
       {"model", "parallel_tool_calls", "temperature", "top_p", "top_k", "min_p", "stream", "seed",
        "stop", "ignore_eos", "repetition_penalty", "presence_penalty", "frequency_penalty",
        "structured_outputs", "cache_salt", "priority", "user", "request_id",
        "chat_template_kwargs"}) {
    chat.Copy(body, name);
  }
  *out = chat.Take();
  names->Add("max_tokens", "max_output_tokens");
  names->Add("reasoning_effort", "reasoning.effort");
  names->Add("response_format.json_schema.schema", "text.format.schema");
  names->Add("response_format", "text.format");

  repeated->clear();
  Repeat(body, "background", "false", repeated);
  Repeat(body, "instructions", "null", repeated);
  Repeat(body, "max_output_tokens", "null", repeated);
  Repeat(body, "metadata", "{}", repeated);
  Repeat(body, "parallel_tool_calls", "true", repeated);
  Repeat(body, "previous_response_id", "null", repeated);
  Repeat(body, "reasoning", "{\"effort\":null,\"summary\":null}", repeated);
  *repeated += ",\"store\":false";  // whatever was asked for
  Repeat(body, "temperature", "null", repeated);
  Repeat(body, "text", "{\"format\":{\"type\":\"text\"}}", repeated);
  Repeat(body, "tool_choice", "\"auto\"", repeated);
  Repeat(body, "tools", "[]", repeated);
  Repeat(body, "top_logprobs", "0", repeated);
  Repeat(body, "top_p", "null", repeated);
  Repeat(body, "truncation", "\"disabled\"", repeated);
  Repeat(body, "user", "null", repeated);
  return std::nullopt;
}

}  // namespace fathom
