#include "cli/flag_words.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/arguments.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Words of other people may be long.
std::string Shown(std::string_view word) { return std::string(word.substr(0, 100)); }

Json ToJson(std::string_view value) {
  if (value == "True") return true;
  if (value == "False") return false;
  if (value == "None") return nullptr;
  Json json = Json::parse(value, nullptr, false);
  if (json.is_discarded()) return std::string(value);
  return json;
}

void AppendTo(Json* list, std::string_view value) {
  if (!list->is_array()) *list = Json::array();
  Json json = Json::parse(value, nullptr, false);
  if (json.is_array()) {
    for (Json& part : json) list->push_back(std::move(part));
    return;
  }
  if (!json.is_discarded()) {
    list->push_back(std::move(json));
    return;
  }
  while (true) {
    const size_t comma = value.find(',');
    list->push_back(ToJson(value.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    value.remove_prefix(comma + 1);
  }
}

// Turns the words behind "serve" into values by flag.
class CommandLineReader {
 public:
  CommandLineReader(const FlagCatalogue& catalogue, std::span<const std::string> arguments,
                    std::vector<std::string>* problems)
      : catalogue_(catalogue), arguments_(arguments), problems_(problems) {}

  Layer Read() {
    bool only_words = false;
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_++];
      if (!only_words && argument == "--") {
        only_words = true;
      } else if (!only_words && argument.rfind("--", 0) == 0) {
        ReadLong(argument);
      } else if (!only_words && argument.size() > 1 && argument.front() == '-') {
        ReadShort(argument);
      } else {
        ReadWord(argument);
      }
    }
    return std::move(layer_);
  }

 private:
  void Complain(std::string problem) { problems_->push_back(std::move(problem)); }

  void ReadWord(const std::string& word) {
    if (has_model_word_) {
      const bool json = word.find_first_of("{}[]") != std::string::npos;
      return Complain("unexpected argument '" + Shown(word) + "'" +
                      (json ? " (in a shell JSON needs quotes: '{\"key\": 1}')" : ""));
    }
    has_model_word_ = true;
    if (layer_.count("model") != 0) return ExcludeModels();
    layer_["model"] = {word};
  }

  void ExcludeModels() { Complain("the model is given twice, as MODEL and as --model"); }

  void ReadLong(const std::string& argument) {
    const size_t equals = argument.find('=');
    std::string path = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const size_t dot = path.find('.');
    std::string name = path.substr(0, dot);
    std::replace(name.begin(), name.end(), '_', '-');
    path = dot == std::string::npos ? "" : path.substr(dot + 1);
    Read("--" + name, name, dot != std::string::npos, path, Inline(argument, equals));
  }

  // -tp 4, -tp=4, -cc.mode 0; -m MODEL; -t4.
  void ReadShort(const std::string& argument) {
    const size_t equals = argument.find('=');
    std::string path = argument.substr(1, equals == std::string::npos ? equals : equals - 1);
    const size_t dot = path.find('.');
    const std::string name = path.substr(0, dot);
    path = dot == std::string::npos ? "" : path.substr(dot + 1);
    std::optional<std::string> value = Inline(argument, equals);
    std::string long_name(LongNameOf(name));
    if (const FlagInfo* flag = catalogue_.FindShort(name)) long_name = flag->name;
    if (long_name.empty()) {
      // -t4, -O3
      const FlagInfo* flag = catalogue_.FindShort(argument.substr(1, 1));
      long_name = flag != nullptr ? flag->name : std::string(LongNameOf(argument.substr(1, 1)));
      if (argument.size() > 2 && !long_name.empty() && NeedsValue(long_name)) {
        return Read(argument.substr(0, 2), long_name, false, "", argument.substr(2));
      }
      return Complain("unknown option " + Shown(argument));
    }
    Read("-" + name, long_name, dot != std::string::npos, path, std::move(value));
  }

  [[nodiscard]] bool NeedsValue(const std::string& name) const {
    const FlagInfo* flag = catalogue_.Find(name);
    return flag != nullptr && flag->kind != FlagKind::kSwitch;
  }

  static std::optional<std::string> Inline(const std::string& argument, size_t equals) {
    if (equals == std::string::npos) return std::nullopt;
    return argument.substr(equals + 1);
  }

  [[nodiscard]] bool NextIsWord() const {
    return next_ < arguments_.size() && arguments_[next_].rfind('-', 0) != 0;
  }

  void Read(const std::string& shown, const std::string& name, bool has_path,
            const std::string& path, std::optional<std::string> value) {
    const auto [flag, negated] = catalogue_.FindOrNegated(name);
    if (flag == nullptr) {
      if (!value && NextIsWord()) ++next_;  // probably its value; that it is wrong is said anyway
      const bool media = name.rfind("mm-", 0) == 0;
      return Complain((media ? "--" + Shown(name) + ": refused, the model reads text only"
                             : "unknown option --" + Shown(name) + catalogue_.Suggestion(name)));
    }
    if (has_path && flag->kind != FlagKind::kJson) {
      return Complain(shown + ": takes no keys, '." + Shown(path) + "' is too much");
    }
    if (flag->kind == FlagKind::kSwitch) return ReadSwitch(shown, *flag, negated, value);
    if (!value) {
      if (next_ == arguments_.size()) return Complain(shown + ": a value is missing");
      // A value is whatever comes next, even if it looks like a flag.
      value = arguments_[next_++];
    }
    Store(shown, *flag, has_path, path, *value);
  }

  void ReadSwitch(const std::string& shown, const FlagInfo& flag, bool negated,
                  const std::optional<std::string>& value) {
    std::string parsed = value ? ParseSwitch(*value) : "true";
    if (parsed.empty()) return Complain(shown + "=" + Shown(*value) + ": expected true or false");
    if (negated) parsed = parsed == "true" ? "false" : "true";
    layer_[flag.name] = {parsed};
  }

  void Store(const std::string& shown, const FlagInfo& flag, bool has_path, const std::string& path,
             const std::string& value) {
    std::vector<std::string>& values = layer_[flag.name];
    switch (flag.kind) {
      case FlagKind::kSwitch:
        break;
      case FlagKind::kValue:
        if (flag.name == "model" && has_model_word_) return ExcludeModels();
        values = {value};
        break;
      case FlagKind::kRepeated:
        AppendListValue(value, &values);
        break;
      case FlagKind::kList:
        AppendListValue(value, &values);
        while (NextIsWord()) AppendListValue(arguments_[next_++], &values);
        break;
      case FlagKind::kJson:
        if (Status depth = CheckJsonDepth(value); !depth.ok()) {
          return Complain(shown + ": " + depth.message());
        }
        if (!has_path) {
          values = {value};
          break;
        }
        if (values.empty()) values.emplace_back();
        if (Status set = SetJsonPath(path, value, &values.front()); !set.ok()) {
          Complain(shown + "." + Shown(path) + ": " + set.message());
        }
        break;
    }
  }

  const FlagCatalogue& catalogue_;
  const std::span<const std::string> arguments_;
  std::vector<std::string>* problems_;
  size_t next_ = 0;
  bool has_model_word_ = false;
  Layer layer_;
};

}  // namespace

void FlagCatalogue::Add(FlagInfo flag) {
  std::string name = flag.name;
  flags_.insert_or_assign(std::move(name), std::move(flag));
}

const FlagInfo* FlagCatalogue::Find(std::string_view name) const {
  const auto found = flags_.find(name);
  return found == flags_.end() ? nullptr : &found->second;
}

FlagCatalogue::Match FlagCatalogue::FindOrNegated(std::string_view name) const {
  if (const FlagInfo* flag = Find(name)) return {flag, false};
  for (const auto& [long_name, flag] : flags_) {
    const auto& names = flag.other_names;
    if (std::find(names.begin(), names.end(), name) != names.end()) return {&flag, false};
  }
  if (!name.starts_with("no-")) return {};
  const FlagInfo* flag = Find(name.substr(3));
  if (flag == nullptr || flag->kind != FlagKind::kSwitch) return {};
  return {flag, true};
}

const FlagInfo* FlagCatalogue::FindShort(std::string_view name) const {
  for (const auto& [long_name, flag] : flags_) {
    const auto& names = flag.short_names;
    if (std::find(names.begin(), names.end(), name) != names.end()) return &flag;
  }
  return nullptr;
}

std::string FlagCatalogue::Suggestion(std::string_view name) const {
  std::vector<std::string> names;
  for (const auto& [known, flag] : flags_) {
    names.push_back(known);
    if (flag.kind == FlagKind::kSwitch) names.push_back("no-" + known);
  }
  const std::string closest = ClosestName(name, names);
  return closest.empty() ? "" : "; did you mean --" + closest + "?";
}

Layer ReadCommandLine(const FlagCatalogue& catalogue, std::span<const std::string> arguments,
                      std::vector<std::string>* problems) {
  return CommandLineReader(catalogue, arguments, problems).Read();
}

std::string ParseSwitch(std::string_view text) {
  std::string lower(text.substr(0, 8));
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  for (const char* yes : {"true", "1", "yes", "on"}) {
    if (lower == yes) return "true";
  }
  for (const char* no : {"false", "0", "no", "off"}) {
    if (lower == no) return "false";
  }
  return "";
}

Status CheckJsonDepth(std::string_view json) {
  constexpr int kDeepest = 64;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > kDeepest) return InvalidArgument("JSON that is nested too deep");
  }
  return {};
}

Status SetJsonPath(std::string_view path, std::string_view value, std::string* object) {
  constexpr int kLongest = 16;
  FATHOM_RETURN_IF_ERROR(CheckJsonDepth(value));
  Json json = object->empty() ? Json::object() : Json::parse(*object, nullptr, false);
  if (json.is_discarded()) return InvalidArgument("the JSON that was given before is broken");
  if (!json.is_object()) json = Json::object();  // a later key wins over an earlier value
  const bool appends = !path.empty() && path.back() == '+';
  if (appends) path.remove_suffix(1);
  Json* node = &json;
  for (int length = 0;; ++length) {
    const size_t dot = path.find('.');
    std::string key(path.substr(0, dot));
    std::replace(key.begin(), key.end(), '-', '_');
    if (key.empty()) return InvalidArgument("a key is empty");
    if (length == kLongest) return InvalidArgument("too many keys");
    if (!node->is_object()) *node = Json::object();
    node = &(*node)[key];
    if (dot == std::string_view::npos) break;
    path.remove_prefix(dot + 1);
  }
  if (appends) {
    AppendTo(node, value);
  } else {
    *node = ToJson(value);
  }
  *object = Dump(json);
  return {};
}

void AppendListValue(const std::string& text, std::vector<std::string>* values) {
  if (!text.empty() && text.front() == '[') {
    const Json json = Json::parse(text, nullptr, false);
    const bool strings =
        json.is_array() &&
        std::all_of(json.begin(), json.end(), [](const Json& j) { return j.is_string(); });
    if (strings) {
      for (const Json& part : json) values->push_back(part.get<std::string>());
      return;
    }
  }
  values->push_back(text);
}

}  // namespace fathom::cli
