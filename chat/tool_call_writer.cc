#include "chat/tool_call_writer.h"

#include <algorithm>
#include <utility>

#include "chat/white_space.h"

namespace fathom {
namespace {

// The object that a value is, or that it holds as a string; as text. None for other values.
std::optional<std::string> ObjectText(std::string_view json, JsonValue& object) {
  std::optional<JsonValue> value = ReadStrictJson(json);
  std::string text(TrimSpace(json));
  if (value && value->IfString() != nullptr) {
    text = TrimSpace(*value->IfString());
    value = ReadStrictJson(text);
  }
  if (!value || value->IfObject() == nullptr) return std::nullopt;
  object = *std::move(value);
  return text;
}

}  // namespace

void ToolCallWriter::Begin(const ToolSchema* schema) {
  schema_ = schema;
  part_ = Part::kBetween;
  any_written_ = false;
  names_.clear();
  held_.clear();
  held_line_feed_ = false;
  wrapped_.clear();
  wrapped_name_.clear();
}

bool ToolCallWriter::MayWrapArguments(std::string_view name) const {
  return names_.empty() && (name == "arguments" || name == "input") && schema_ != nullptr &&
         schema_->has_properties && !schema_->parameters.contains(name);
}

void ToolCallWriter::WriteKey(std::string_view name, std::string& out) {
  out += any_written_ ? ", \"" : "{\"";
  AppendJsonEscaped(name, out);
  out += "\": ";
  any_written_ = true;
}

void ToolCallWriter::WriteWrapped(std::string& out) {
  if (wrapped_name_.empty()) return;
  WriteKey(wrapped_name_, out);
  out += wrapped_;
  wrapped_name_.clear();
  wrapped_.clear();
}

void ToolCallWriter::BeginParameter(std::string_view name,
                                    const std::optional<std::string>& string_attribute,
                                    std::string& out, ParserRepairCounts& repairs) {
  held_.clear();
  name_ = name;
  string_attribute_ = string_attribute;
  if (names_.contains(name)) {
    repairs.Add(ParserRepair::kRepeatedParameter);
    part_ = Part::kIgnored;
    return;
  }
  WriteWrapped(out);
  const JsonTypes types = schema_ == nullptr ? JsonTypes() : schema_->TypesOf(name);
  if (!IsStringParameter(types, string_attribute)) {
    part_ = Part::kTyped;
  } else if (MayWrapArguments(name)) {
    part_ = Part::kHeldString;
  } else {
    part_ = Part::kString;
    WriteKey(name, out);
    out += '"';
  }
}

void ToolCallWriter::ParameterText(std::string_view text, std::string& out) {
  if (part_ == Part::kIgnored || text.empty()) return;
  if (part_ != Part::kString) {
    held_ += text;
    return;
  }
  if (held_line_feed_) AppendJsonEscaped("\n", out);
  held_line_feed_ = text.back() == '\n';
  if (held_line_feed_) text.remove_suffix(1);
  AppendJsonEscaped(text, out);
}

void ToolCallWriter::EndParameter(bool recovered, std::string& out, ParserRepairCounts& repairs) {
  if (recovered) repairs.Add(ParserRepair::kValueCloser);
  if (part_ == Part::kString) {
    if (held_line_feed_ && !recovered) AppendJsonEscaped("\n", out);
    held_line_feed_ = false;
    out += '"';
  } else if (part_ != Part::kIgnored) {
    if (recovered && held_.ends_with('\n')) held_.pop_back();
    TypedValue value;
    if (part_ == Part::kHeldString) {
      value.json = JsonStringText(held_);
    } else {
      const JsonTypes types = schema_ == nullptr ? JsonTypes() : schema_->TypesOf(name_);
      value = ReadTypedValue(types, string_attribute_, held_);
      if (value.repaired) repairs.Add(ParserRepair::kTypedValue);
    }
    if (MayWrapArguments(name_)) {
      wrapped_name_ = name_;
      wrapped_ = std::move(value.json);
    } else {
      WriteKey(name_, out);
      out += value.json;
    }
  }
  if (part_ != Part::kIgnored) names_.insert(name_);
  held_.clear();
  part_ = Part::kBetween;
}

bool ToolCallWriter::BodyIsObject() const {
  const std::optional<JsonValue> body = ReadStrictJson(TrimSpace(held_));
  return body && body->IfObject() != nullptr;
}

void ToolCallWriter::Complete(std::string& out, ParserRepairCounts& repairs) {
  if (!held_.empty()) {
    repairs.Add(ParserRepair::kJsonBody);
    const std::string_view body = TrimSpace(held_);
    out += BodyIsObject() ? std::string(body) : "{\"arguments\": " + JsonStringText(body) + "}";
    held_.clear();
    return;
  }
  JsonValue object;
  if (!wrapped_name_.empty()) {
    const std::optional<std::string> text = ObjectText(wrapped_, object);
    const auto declared = [this](const JsonValue::Member& member) {
      return schema_->parameters.contains(member.key);
    };
    if (text && std::all_of(object.IfObject()->begin(), object.IfObject()->end(), declared)) {
      repairs.Add(ParserRepair::kWrappedArguments);
      out += *text;
      return;
    }
  }
  WriteWrapped(out);
  out += any_written_ ? "}" : "{}";
}

void ToolCallWriter::LeaveOpen(std::string& out) {
  WriteWrapped(out);
  if (part_ == Part::kString) {
    if (held_line_feed_) AppendJsonEscaped("\n", out);
  } else if (part_ == Part::kHeldString) {
    WriteKey(name_, out);
    out += '"';
    AppendJsonEscaped(held_, out);
  } else if (part_ == Part::kBetween && !held_.empty()) {
    std::string_view body = held_;
    // All of the object came, but not the end of the call: without its last brace it can't be run.
    if (BodyIsObject()) {
      body = TrimSpace(body);
      body.remove_suffix(1);
    }
    out += body;
  }
  held_.clear();
}

}  // namespace fathom
