// fathom bench serve; declared apart because it has more options than all other benchmarks.
#pragma once

#include "cli/command.h"

namespace fathom::cli {

void AddBenchServe(CLI::App& bench, Action& action);

}  // namespace fathom::cli
