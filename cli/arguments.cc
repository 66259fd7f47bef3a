#include "cli/arguments.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "cli/numbers.h"

namespace fathom::cli {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  // row[j]: edits between the part of `a` read so far and the first j letters of `b`.
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row.back();
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

Status Unknown(const std::string& what, const std::string& word,
               const std::vector<std::string>& candidates) {
  const std::string closest = ClosestName(word, candidates);
  return InvalidArgument("unknown " + what + " " + word +
                         (closest.empty() ? "" : "; did you mean " + closest + "?"));
}

// "fathom bench step".
std::string CommandLine(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : CommandLine(*parent) + " " + command.get_name();
}

Status UnknownOption(const CLI::App& scope, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::Option* option : scope.get_options()) {
    for (const std::string& known : option->get_lnames()) names.push_back("--" + known);
  }
  for (const CLI::App* command : scope.get_subcommands(nullptr)) {
    if (command->get_option_no_throw(name) != nullptr) {
      return InvalidArgument(name + " is an option of commands: " + CommandLine(*command) + " " +
                             name);
    }
  }
  return Unknown("option", name, names);
}

// How many of the arguments that follow belong to a group of short options such as -qn.
size_t ValuesOfShortOptions(const CLI::App& scope, const std::string& argument) {
  for (size_t i = 1; i < argument.size(); ++i) {
    const CLI::Option* option = scope.get_option_no_throw(std::string("-") + argument[i]);
    if (option == nullptr) return 0;  // the parser complains
    if (TakesValue(*option)) return i + 1 == argument.size() ? 1 : 0;
  }
  return 0;
}

}  // namespace

std::string ClosestName(std::string_view word, const std::vector<std::string>& candidates) {
  // A third of the letters wrong is still a slip; names that share less were hardly meant. The cap
  // on the length keeps a megabyte of nonsense from taking minutes.
  constexpr size_t kLongest = 64;
  if (word.size() > kLongest) return {};
  std::string closest;
  size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t edits = EditDistance(word, candidate);
    if (edits < fewest) {
      fewest = edits;
      closest = candidate;
    }
  }
  return closest;
}

Result<std::vector<std::string>> NormalizeArguments(const CLI::App& app,
                                                    const std::vector<std::string>& arguments) {
  std::vector<std::string> out;
  const CLI::App* scope = &app;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      out.insert(out.end(), arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
      break;
    }
    size_t num_values = 0;
    if (argument.rfind("--", 0) == 0) {
      const size_t equals = argument.find('=');
      std::string name = argument.substr(0, equals);
      std::replace(name.begin(), name.end(), '_', '-');
      const CLI::Option* option = scope->get_option_no_throw(name);
      if (option == nullptr) return UnknownOption(*scope, name);
      if (equals == std::string::npos) {
        out.push_back(name);
        num_values = TakesValue(*option) ? 1 : 0;
      } else if (TakesValue(*option)) {
        out.push_back(name);
        out.push_back(argument.substr(equals + 1));
      } else {
        out.push_back(name + argument.substr(equals));
      }
    } else {
      out.push_back(argument);
      if (argument.size() > 1 && argument.front() == '-') {
        num_values = ValuesOfShortOptions(*scope, argument);
      } else if (const auto commands = scope->get_subcommands(nullptr); !commands.empty()) {
        std::vector<std::string> names;
        const CLI::App* chosen = nullptr;
        for (const CLI::App* command : commands) {
          names.push_back(command->get_name());
          if (command->get_name() == argument) chosen = command;
        }
        if (chosen == nullptr) return Unknown("command", argument, names);
        scope = chosen;
      }
    }
    // A value is whatever comes next, even if it looks like an option.
    if (num_values == 1 && i + 1 < arguments.size()) out.push_back(arguments[++i]);
  }
  return out;
}

CLI::Validator RealNumber(double min, double max, bool min_allowed, const std::string& range) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        // Written so that NaN fails.
        const bool fits = (min_allowed ? value >= min : value > min) && value <= max;
        if (!text.empty() && *end == '\0' && fits) return {};
        return "'" + text + "' is not a number (" + range + ")";
      },
      range);
}

CLI::Validator WholeNumber() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        int64_t value = 0;
        const char* end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, value);
        if (error == std::errc() && rest == end) return {};
        return "'" + text + "' is not a whole number of 64 bits";
      },
      "");
}

CLI::Validator Count(int64_t min, int64_t max) {
  const std::string range = std::to_string(min) + " to " + std::to_string(max);
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        const auto count = ParseCount(text, "count", max);
        if (!count.ok()) return count.status().message();
        if (*count < min) return text + " is not in the range " + range;
        text = std::to_string(*count);
        return {};
      },
      range);
}

CLI::Validator CountOrAuto(int64_t min, int64_t max) {
  const std::string range = "auto, " + std::to_string(min) + " to " + std::to_string(max);
  return CLI::Validator(
      [count = Count(min, max)](std::string& text) -> std::string {
        if (text != "auto" && text != "-1") return count(text);
        text = "0";
        return {};
      },
      range);
}

}  // namespace fathom::cli
