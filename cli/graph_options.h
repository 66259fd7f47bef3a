// Options about recorded steps (model/step_graphs.h), by vLLM's names, and what they say together.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/step_graphs.h"

namespace fathom::cli {

struct GraphFlags {
  std::string compilation_config;  // JSON; empty: not given
  bool enforce_eager = false;
  std::vector<int> sizes;       // of --cudagraph-capture-sizes; empty: not given
  std::optional<int> max_size;  // of --max-cudagraph-capture-size; 0 records nothing
};

// --compilation-config, --enforce-eager, --cudagraph-capture-sizes, --max-cudagraph-capture-size.
void AddGraphOptions(CLI::App& command, GraphFlags& flags);

// What they say; absent where they say nothing. kInvalidArgument, naming both options, for one that
// records steps beside one that records none, for lists of sizes in two places, and for lists of
// which nothing is left below the largest size.
Result<std::optional<GraphOptions>> ToGraphOptions(const GraphFlags& flags);

// kInvalidArgument, naming the option, where steps are to be recorded by another backend than
// "cuda".
Status CheckGraphFlags(const GraphFlags& flags, const std::string& backend);

// A line for each option that has no effect with that backend, or has keys that have none: for
// commands that go on nevertheless.
std::vector<std::string> GraphWarnings(const GraphFlags& flags, const std::string& backend);

}  // namespace fathom::cli
