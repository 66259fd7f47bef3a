// A plan as tables for people and as one JSON object for programs.
#pragma once

#include <ostream>
#include <string>

#include "checkpoint/config.h"
#include "cli/plan_report.h"

namespace fathom::cli {

// `model` is how the user named it.
void PrintPlan(std::ostream& out, const std::string& model, const ModelConfig& config,
               const PlanReport& report);

// docs/planning.md describes the fields.
std::string PlanJson(const std::string& model, const ModelConfig& config, const PlanReport& report);

}  // namespace fathom::cli
