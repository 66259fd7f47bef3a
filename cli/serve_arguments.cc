#include "cli/serve_arguments.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/arguments.h"

namespace fathom::cli {
namespace {

constexpr std::string_view kSecrets[] = {"api-key", "hf-token"};

bool IsSecret(std::string_view name) {
  return std::find(std::begin(kSecrets), std::end(kSecrets), name) != std::end(kSecrets);
}

FlagKind KindOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return FlagKind::kSwitch;
  if (option.get_type_name().rfind(kJsonType, 0) == 0) return FlagKind::kJson;
  if (option.get_items_expected_max() == 1) return FlagKind::kValue;
  return option.get_allow_extra_args() ? FlagKind::kList : FlagKind::kRepeated;
}

// The name that a setting has; "--no-x" forms come after it.
std::string NameOf(const CLI::Option& option) {
  return option.get_lnames().empty() ? "" : option.get_lnames().front();
}

// What the option says to a value that does not suit it, without the name in front of it.
std::string TryOption(CLI::Option& option, const std::vector<std::string>& values) {
  std::string problem;
  try {
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::Error& error) {
    problem = error.what();
  }
  option.clear();
  return problem;
}

std::string Joined(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += (text.empty() ? "" : " ") + value;
  constexpr size_t kLongest = 200;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

// "--dtype half": what was said, as the reader knows it.
std::string Said(const std::string& name, const Setting& setting) {
  if (setting.origin == Origin::kCommandLine &&
      setting.values == std::vector<std::string>{"false"}) {
    return "--no-" + name;
  }
  const bool plain = IsSecret(name) || setting.values == std::vector<std::string>{"true"};
  return setting.source + (plain ? "" : " " + Joined(setting.values));
}

class Preparer {
 public:
  Preparer(CLI::App& serve, const FlagCatalogue& catalogue)
      : serve_(serve), catalogue_(catalogue) {}

  ServeArguments Prepare(std::span<const std::string> arguments, const Environment& environment,
                         const std::function<ServeChecks()>& check) {
    result_.settings = ReadSettings(catalogue_, arguments, environment);
    result_.problems = std::move(result_.settings.problems);
    result_.warnings = std::move(result_.settings.warnings);
    result_.notes = std::move(result_.settings.notes);
    const auto& values = result_.settings.values;
    if (values.count("help") + values.count("help-all") > 0) {
      result_.problems.clear();
      result_.next = values.count("help-all") > 0 ? ServeArguments::Next::kHelpAll
                                                  : ServeArguments::Next::kHelp;
      return std::move(result_);
    }
    for (const auto& [name, setting] : values) {
      if (const VllmFlag* flag = FindVllmFlag(name)) {
        TakeVllmFlag(*flag, setting);
      } else {
        TakeOption(name, setting);
      }
    }
    ServeChecks checks = check();
    for (std::string& problem : checks.problems) result_.problems.push_back(std::move(problem));
    for (std::string& warning : checks.warnings) result_.warnings.push_back(std::move(warning));
    if (values.count("print-config") > 0) result_.next = ServeArguments::Next::kPrintConfig;
    return std::move(result_);
  }

 private:
  void TakeVllmFlag(const VllmFlag& flag, const Setting& setting) {
    const Judgement judgement = Judge(flag, setting.values);
    const std::string line = Said(std::string(flag.name), setting) + ": ";
    if (judgement.verdict == Verdict::kRefuse) {
      result_.problems.push_back(line + "refused; " + judgement.text);
    } else if (judgement.verdict == Verdict::kWarn) {
      result_.warnings.push_back(line + "no effect; " + judgement.text);
    }
  }

  void TakeOption(const std::string& name, const Setting& setting) {
    CLI::Option& option = *serve_.get_option("--" + name);
    if (const std::string problem = TryOption(option, setting.values); !problem.empty()) {
      // The library puts "--name: " in front, which a variable or a file needs as well.
      const bool from_line = setting.origin == Origin::kCommandLine;
      result_.problems.push_back(from_line ? problem : setting.source + ": " + problem);
      return;
    }
    for (const std::string& value : setting.values) {
      if (KindOf(option) == FlagKind::kSwitch) {
        result_.arguments.push_back("--" + name + "=" + value);
      } else {
        result_.arguments.push_back("--" + name);
        result_.arguments.push_back(value);
      }
    }
  }

  CLI::App& serve_;
  const FlagCatalogue& catalogue_;
  ServeArguments result_;
};

// A YAML scalar that reads as this text, whatever it looks like.
std::string Scalar(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string::npos &&
                     text.front() != '-' && text.front() != '.' && text != "null" &&
                     text != "Null" && text != "NULL";
  if (plain) return text;
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Value(FlagKind kind, const std::vector<std::string>& values) {
  if (kind == FlagKind::kJson) {
    // JSON is YAML, and a map reads better than a string.
    const auto json = nlohmann::json::parse(values.front(), nullptr, false);
    return json.is_object() ? json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
                            : Scalar(values.front());
  }
  if (kind != FlagKind::kList && kind != FlagKind::kRepeated) return Scalar(values.front());
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ", ") + Scalar(value);
  return "[" + list + "]";
}

std::string OriginText(const Setting& setting) {
  switch (setting.origin) {
    case Origin::kConfigFile:
      return "config file";
    case Origin::kVllmVariable:
    case Origin::kFathomVariable:
      return setting.source;
    case Origin::kCommandLine:
      break;
  }
  return "command line";
}

}  // namespace

FlagCatalogue CatalogueOf(const CLI::App& serve) {
  FlagCatalogue catalogue;
  for (const CLI::Option* option : serve.get_options()) {
    if (const std::string name = NameOf(*option); !name.empty()) {
      // A switch's other names are its "--no-x" forms.
      std::vector<std::string> others;
      if (KindOf(*option) != FlagKind::kSwitch) {
        others.assign(option->get_lnames().begin() + 1, option->get_lnames().end());
      }
      catalogue.Add({name, KindOf(*option), option->get_snames(), std::move(others)});
    }
  }
  for (const VllmFlag& flag : VllmFlags()) catalogue.Add({std::string(flag.name), flag.kind, {}});
  return catalogue;
}

ServeArguments PrepareServeArguments(CLI::App& serve, std::span<const std::string> arguments,
                                     const Environment& environment,
                                     const std::function<ServeChecks()>& check) {
  const FlagCatalogue catalogue = CatalogueOf(serve);
  return Preparer(serve, catalogue).Prepare(arguments, environment, check);
}

std::string ConfigText(CLI::App& serve, const Settings& settings) {
  std::string text;
  const auto add = [&](const std::string& name, FlagKind kind, const std::string& default_text) {
    const auto found = settings.values.find(name);
    if (found == settings.values.end()) {
      text += default_text.empty() ? "# " + name + ": not set\n"
                                   : name + ": " + Scalar(default_text) + "  # default\n";
    } else if (IsSecret(name)) {
      text += "# " + name + ": not shown  # " + OriginText(found->second) + "\n";
    } else {
      text += name + ": " + Value(kind, found->second.values) + "  # " + OriginText(found->second) +
              "\n";
    }
  };
  std::string group;
  for (CLI::Option* option : serve.get_options({})) {
    const std::string name = NameOf(*option);
    if (name.empty() || name == "help" || name == "help-all" || name == "config" ||
        name == "print-config") {
      continue;
    }
    if (option->get_group() != group) {
      group = option->get_group();
      text += "\n# " + group + "\n";
    }
    if (KindOf(*option) == FlagKind::kSwitch) option->capture_default_str();
    add(name, KindOf(*option), option->get_default_str());
  }
  text += "\n# Of vLLM\n";
  for (const VllmFlag& flag : VllmFlags()) {
    const std::string name(flag.name);
    if (settings.values.count(name) > 0) add(name, flag.kind, "");
  }
  return text;
}

}  // namespace fathom::cli
