// What `fathom serve` is told, from all places that tell it: command line, environment, file.
//
// Values stay text here; what they mean, and whether they are good, is for who reads them. Problems
// are collected, not returned at the first, so that one run shows all of them. Thread safety: pure
// functions.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flag_words.h"

namespace fathom::cli {

// Later ones win.
enum class Origin { kConfigFile, kVllmVariable, kFathomVariable, kCommandLine };

struct Setting {
  std::vector<std::string> values;  // "true" or "false" of a switch; one JSON text of kJson
  Origin origin = Origin::kCommandLine;
  std::string source;  // "--port", "FATHOM_PORT", "port in config.yaml": for messages
};

struct Settings {
  std::map<std::string, Setting, std::less<>> values;  // by the flag's name
  std::vector<std::string> problems;                   // any: nothing else counts
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // what was looked at and not used, for the debug log
};

using Environment = std::map<std::string, std::string>;
Environment ProcessEnvironment();

// All places together; reads the file that --config names.
Settings ReadSettings(const FlagCatalogue& catalogue, std::span<const std::string> arguments,
                      const Environment& environment);

}  // namespace fathom::cli
