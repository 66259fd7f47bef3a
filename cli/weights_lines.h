// What the log says about where weights are. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "engine/local_model.h"

namespace fathom::cli {

struct LogLine {
  bool is_warning = false;
  std::string text;
};

// What was done with the weights and, as warnings, what the user should know of its speed.
std::vector<LogLine> DescribeWeights(const WeightsReport& report);

// The same to the log.
void LogWeights(const WeightsReport& report);

}  // namespace fathom::cli
