// What the output parser repairs, counted by kind: a model or a template that goes wrong shows here
// before anybody complains (fathom:parser_repairs{kind}).
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace fathom {

enum class ParserRepair {
  kWrapperSpelling,    // calls in a block whose tag is spelled in another way
  kWrapperMissing,     // a call without the block around it
  kTagSpelling,        // a call whose tags have other bars or a space
  kBlockInReasoning,   // calls in a reasoning that was never closed
  kValueCloser,        // a value without its closing tag
  kCallCloser,         // a call without its closing tag
  kRepeatedParameter,  // one that came again: the first counts
  kTypedValue,         // a value of another type than marked
  kWrappedArguments,   // all arguments in one parameter
  kJsonBody,           // a JSON object instead of parameters
  kStrayTag,           // a tag that belongs to no call, dropped from the content
  kSwallowedCall,      // a call although tool_choice is none
};
inline constexpr size_t kNumParserRepairs = 12;

// The metric's label values, in the order of the enum.
inline constexpr std::array<std::string_view, kNumParserRepairs> kParserRepairNames = {
    "wrapper_spelling",  "wrapper_missing", "tag_spelling",       "block_in_reasoning",
    "value_closer",      "call_closer",     "repeated_parameter", "typed_value",
    "wrapped_arguments", "json_body",       "stray_tag",          "swallowed_call",
};

class ParserRepairCounts {
 public:
  void Add(ParserRepair kind) { ++counts_[static_cast<size_t>(kind)]; }
  [[nodiscard]] const std::array<int, kNumParserRepairs>& counts() const { return counts_; }

 private:
  std::array<int, kNumParserRepairs> counts_{};
};

}  // namespace fathom
