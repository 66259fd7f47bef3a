// Reasoning effort: what a request asks for, and which text a checkpoint wants for it.
//
// Two official tables exist. With `preview` (April 2026) only `max` writes a text; with `0731`
// `high` writes that same text and `max` a stronger one. Serving a checkpoint with the wrong table
// shifts every level by one.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace fathom {

enum class EffortProfile { kPreview, k0731 };
enum class EffortLevel { kLow, kHigh, kMax };

// "low", "high" or "max".
std::string_view EffortLevelName(EffortLevel level);
// The three names of the official encoder; none for others.
std::optional<EffortLevel> ParseEffortLevel(std::string_view name);

// The level that a client's word (minimal, low, medium, high, xhigh, max; not none) means for a
// profile. None for an unknown word.
std::optional<EffortLevel> EffortLevelFor(std::string_view requested, EffortProfile profile);

// Text to write directly after BOS in thinking mode; empty for most. Refuses kLow with kPreview, as
// the official encoder of that release does.
Result<std::string_view> EffortText(EffortLevel level, EffortProfile profile);

// `--reasoning-effort-profile auto`. Reads, and never runs, the encoder that lies beside the
// weights: a dictionary REASONING_EFFORT_PROMPTS with low, high and max and the default low mean
// 0731. Without it, keys `dspark_*` in config.json mean 0731. Otherwise preview.
EffortProfile DetectEffortProfile(std::string_view encoder_source, std::string_view config_json);
// The same for a model directory; files that are missing or larger than 4 MiB count as empty.
EffortProfile DetectEffortProfileOf(const std::filesystem::path& model_dir);

}  // namespace fathom
