#include "chat/effort.h"

#include <fstream>
#include <string>
#include <system_error>

#include "chat/deepseek_text.h"
#include "chat/json_parse.h"

namespace fathom {
namespace {

constexpr std::string_view kSpace = " \t\r";

std::string_view TrimSpace(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// What a line `NAME = value` or `NAME: type = value` at top level assigns: the source from the
// value on. Empty if there is no such line.
std::string_view AssignedTo(std::string_view name, std::string_view source) {
  size_t line_begin = 0;
  while (line_begin < source.size()) {
    const std::string_view rest = source.substr(line_begin);
    const std::string_view line = rest.substr(0, rest.find('\n'));
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos) {
      const std::string_view left = line.substr(0, equals);
      if (TrimSpace(left.substr(0, left.find(':'))) == name && left.starts_with(name)) {
        return rest.substr(equals + 1);
      }
    }
    line_begin += line.size() + 1;
  }
  return {};
}

bool HasQuoted(std::string_view text, std::string_view word, std::string_view after) {
  for (const char* quote : {"\"", "'"}) {
    const std::string quoted = quote + std::string(word) + quote;
    const size_t at = text.find(quoted);
    if (at == std::string_view::npos) continue;
    if (TrimSpace(text.substr(at + quoted.size())).starts_with(after)) return true;
  }
  return false;
}

bool Has0731Table(std::string_view source) {
  const std::string_view table_on = TrimSpace(AssignedTo("REASONING_EFFORT_PROMPTS", source));
  if (!table_on.starts_with('{')) return false;
  const std::string_view table = table_on.substr(0, table_on.find("\n}"));
  const std::string_view after_default = AssignedTo("DEFAULT_REASONING_EFFORT", source);
  const std::string_view default_level = after_default.substr(0, after_default.find('\n'));
  return HasQuoted(default_level, "low", "") && HasQuoted(table, "low", ":") &&
         HasQuoted(table, "high", ":") && HasQuoted(table, "max", ":");
}

std::string ReadSmallFile(const std::filesystem::path& path) {
  constexpr uintmax_t kMaxBytes = uintmax_t{4} << 20;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMaxBytes) return {};
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

}  // namespace

std::string_view EffortLevelName(EffortLevel level) {
  switch (level) {
    case EffortLevel::kLow:
      return "low";
    case EffortLevel::kHigh:
      return "high";
    case EffortLevel::kMax:
      return "max";
  }
  return "";
}

std::optional<EffortLevel> ParseEffortLevel(std::string_view name) {
  if (name == "low") return EffortLevel::kLow;
  if (name == "high") return EffortLevel::kHigh;
  if (name == "max") return EffortLevel::kMax;
  return std::nullopt;
}

std::optional<EffortLevel> EffortLevelFor(std::string_view requested, EffortProfile profile) {
  if (requested == "minimal" || requested == "low" || requested == "medium") {
    return profile == EffortProfile::k0731 ? EffortLevel::kLow : EffortLevel::kHigh;
  }
  if (requested == "high") return EffortLevel::kHigh;
  if (requested == "xhigh" || requested == "max") return EffortLevel::kMax;
  return std::nullopt;
}

Result<std::string_view> EffortText(EffortLevel level, EffortProfile profile) {
  const bool is_0731 = profile == EffortProfile::k0731;
  switch (level) {
    case EffortLevel::kLow:
      if (!is_0731) return InvalidArgument("the preview effort table has no level low");
      return std::string_view();
    case EffortLevel::kHigh:
      return is_0731 ? deepseek_text::kEffortAbsoluteMaximum : std::string_view();
    case EffortLevel::kMax:
      return is_0731 ? deepseek_text::kEffortBeyondMaximum : deepseek_text::kEffortAbsoluteMaximum;
  }
  return Internal("effort level out of range");
}

EffortProfile DetectEffortProfile(std::string_view encoder_source, std::string_view config_json) {
  if (Has0731Table(encoder_source)) return EffortProfile::k0731;
  const Result<JsonValue> config = ParseJson(config_json);
  if (!config.ok() || config.value().IfObject() == nullptr) return EffortProfile::kPreview;
  for (const JsonValue::Member& member : *config.value().IfObject()) {
    if (member.key.starts_with("dspark_")) return EffortProfile::k0731;
  }
  return EffortProfile::kPreview;
}

EffortProfile DetectEffortProfileOf(const std::filesystem::path& model_dir) {
  return DetectEffortProfile(ReadSmallFile(model_dir / "encoding" / "encoding_dsv4.py"),
                             ReadSmallFile(model_dir / "config.json"));
}

}  // namespace fathom
