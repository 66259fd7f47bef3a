// The command line before it is parsed, with the spelling rules that people know from `vllm serve`,
// and values that several commands read.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace fathom::cli {

// Marks options whose value is a JSON object.
inline constexpr const char* kJsonType = "JSON";

// The arguments as the parser takes them: `_` in long names turned into `-`, "--name=value" in two
// parts (the parser reads an empty value as none). Values are left alone. kInvalidArgument for a
// command or a long name that does not exist; the message names the closest one.
Result<std::vector<std::string>> NormalizeArguments(const CLI::App& app,
                                                    const std::vector<std::string>& arguments);

// The candidate with the fewest edits from `word`; empty when none is close enough to be meant.
std::string ClosestName(std::string_view word, const std::vector<std::string>& candidates);

// Refuse what is no number at all, NaN and what is out of range; for CLI::Option::check.
CLI::Validator RealNumber(double min, double max, bool min_allowed, const std::string& range);
CLI::Validator WholeNumber();
// Turns a count with suffix (numbers.h) into digits, for CLI::Option::transform.
CLI::Validator Count(int64_t min, int64_t max);
// The same with "auto" and -1 for 0.
CLI::Validator CountOrAuto(int64_t min, int64_t max);

// Whether `parse` (text to a Result) takes the value, so that a bad one is a mistake in the
// arguments.
template <typename Parse>
CLI::Validator Parses(Parse parse) {
  return CLI::Validator(
      [parse](const std::string& text) -> std::string {
        const auto parsed = parse(text);
        return parsed.ok() ? "" : parsed.status().message();
      },
      "");
}

}  // namespace fathom::cli
