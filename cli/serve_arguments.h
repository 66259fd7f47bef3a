// From all that `fathom serve` is told (settings.h) to arguments for the parser of its options,
// with every problem of every flag found on the way.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/settings.h"

namespace fathom::cli {

// All options of the command and all flags of the vLLM table.
FlagCatalogue CatalogueOf(const CLI::App& serve);

struct ServeArguments {
  enum class Next { kRun, kHelp, kHelpAll, kPrintConfig };
  Next next = Next::kRun;
  // Any: wrong usage, and nothing below counts. With kHelp, none.
  std::vector<std::string> problems;
  std::vector<std::string> warnings;
  std::vector<std::string> notes;      // for the debug log
  std::vector<std::string> arguments;  // for the parser, behind "serve"
  Settings settings;
};

// What is said of options together.
struct ServeChecks {
  std::vector<std::string> problems;
  std::vector<std::string> warnings;
};

// `arguments` are those behind "serve". Tries each value on the command's options, which are set by
// that; `check` is asked for what no single option can tell when all of them are good.
ServeArguments PrepareServeArguments(CLI::App& serve, std::span<const std::string> arguments,
                                     const Environment& environment,
                                     const std::function<ServeChecks()>& check);

// What --print-config prints: every option and flag with its value and where that comes from. Given
// as --config it means the same. Keys and tokens are left out.
std::string ConfigText(CLI::App& serve, const Settings& settings);

}  // namespace fathom::cli
