// An engine's own numbers in the form in which Prometheus takes them. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/engine_stats.h"

namespace prometheus {
struct MetricFamily;
}  // namespace prometheus

namespace fathom {

// Name and value.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Names, labels and buckets as in docs/metrics.md; `labels` are on every series. What belongs to a
// cache pool is left out where the engine has none: zeros would pass for measurements.
std::vector<prometheus::MetricFamily> EngineFamilies(const EngineStats& stats,
                                                     const MetricLabels& labels);

}  // namespace fathom
