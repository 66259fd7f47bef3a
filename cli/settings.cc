#include "cli/settings.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "cli/command.h"
#include "cli/config_file.h"

namespace fathom::cli {
namespace {

// Words of other people may be long.
std::string Shown(std::string_view word) { return std::string(word.substr(0, 100)); }

// What vLLM's variables mean here. One that is not in the table gets a line in the debug log.
struct VllmVariable {
  const char* name;
  const char* flag;
  const char* unit = "";  // what the value counts in
};
constexpr VllmVariable kVllmVariables[] = {
    {"VLLM_API_KEY", "api-key"},
    {"VLLM_LOGGING_LEVEL", "log-level"},
    {"VLLM_LOG_STATS_INTERVAL", "log-stats-interval"},
    {"VLLM_ENGINE_READY_TIMEOUT_S", "engine-ready-timeout"},
    {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL", "prefix-cache-retention-interval"},
    {"VLLM_SERVER_DEV_MODE", "enable-dev-endpoints"},
    {"VLLM_CPU_KVCACHE_SPACE", "kv-cache-memory-bytes", "GiB"},
};

std::string VariableOf(std::string_view flag) {
  std::string name = "FATHOM_";
  for (const char c : flag) {
    name += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

class SettingsReader {
 public:
  SettingsReader(const FlagCatalogue& catalogue, const Environment& environment)
      : catalogue_(catalogue), environment_(environment) {}

  Settings Read(std::span<const std::string> arguments) {
    const Layer line = ReadCommandLine(catalogue_, arguments, &settings_.problems);
    std::string path = Variable("FATHOM_CONFIG");
    if (const auto given = line.find("config"); given != line.end()) path = given->second.front();
    if (!path.empty()) ReadFile(path);
    for (const VllmVariable& variable : kVllmVariables) {
      const std::string value = Variable(variable.name);
      if (!value.empty()) Take(variable.flag, value + variable.unit, variable.name);
    }
    for (const auto& [name, flag] : catalogue_.flags()) {
      const std::string variable = VariableOf(name);
      if (const std::string value = Variable(variable); !value.empty()) TakeOurs(name, variable);
    }
    for (const auto& [name, values] : line) {
      settings_.values[name] = {values, Origin::kCommandLine, "--" + name};
    }
    NoteUnused();
    return std::move(settings_);
  }

 private:
  // Empty where it is not set: a variable that is set to nothing counts as not set.
  [[nodiscard]] std::string Variable(const std::string& name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? "" : found->second;
  }

  void ReadFile(const std::string& path) {
    const auto text = ReadInput(path);
    if (!text.ok()) {
      settings_.problems.push_back("--config: " + text.status().message());
      return;
    }
    for (auto& [name, values] : ReadConfigText(catalogue_, *text, path, &settings_.problems)) {
      settings_.values[name] = {values, Origin::kConfigFile, name + " in " + path};
    }
  }

  void TakeOurs(const std::string& name, const std::string& variable) {
    if (name == "help" || name == "help-all" || name == "print-config") return;
    // Kubernetes sets this for a service of the name "fathom".
    if (variable == "FATHOM_PORT" && Variable(variable).rfind("tcp://", 0) == 0) {
      settings_.warnings.push_back(
          "FATHOM_PORT is no port but what Kubernetes sets for a service named fathom; not used");
      return;
    }
    Take(name, Variable(variable), variable);
  }

  void Take(const std::string& name, const std::string& text, const std::string& variable) {
    const FlagInfo* flag = catalogue_.Find(name);
    if (flag == nullptr) return;  // a test's catalogue may be small
    std::vector<std::string> values;
    switch (flag->kind) {
      case FlagKind::kSwitch:
        values = {ParseSwitch(text)};
        if (values.front().empty()) {
          settings_.problems.push_back(variable + "=" + Shown(text) + ": expected 1 or 0");
          return;
        }
        break;
      case FlagKind::kList:
      case FlagKind::kRepeated:
        AppendListValue(text, &values);
        break;
      case FlagKind::kJson:
        if (Status depth = CheckJsonDepth(text); !depth.ok()) {
          settings_.problems.push_back(variable + ": " + depth.message());
          return;
        }
        [[fallthrough]];
      case FlagKind::kValue:
        values = {text};
        break;
    }
    const bool ours = variable.rfind("FATHOM_", 0) == 0;
    settings_.values[name] = {values, ours ? Origin::kFathomVariable : Origin::kVllmVariable,
                              variable};
  }

  void NoteUnused() {
    for (const auto& [variable, value] : environment_) {
      if (variable.rfind("VLLM_", 0) == 0) {
        const bool known =
            std::any_of(std::begin(kVllmVariables), std::end(kVllmVariables),
                        [name = variable](const VllmVariable& v) { return name == v.name; });
        if (!known) settings_.notes.push_back(variable + " has no meaning for fathom");
      } else if (variable.rfind("FATHOM_", 0) == 0) {
        std::string name = variable.substr(7);
        std::transform(name.begin(), name.end(), name.begin(), [](char c) {
          return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        });
        if (catalogue_.Find(name) == nullptr) {
          settings_.notes.push_back(variable + " is no option" + catalogue_.Suggestion(name));
        }
      }
    }
  }

  const FlagCatalogue& catalogue_;
  const Environment& environment_;
  Settings settings_;
};

}  // namespace

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

Settings ReadSettings(const FlagCatalogue& catalogue, std::span<const std::string> arguments,
                      const Environment& environment) {
  return SettingsReader(catalogue, environment).Read(arguments);
}

}  // namespace fathom::cli
