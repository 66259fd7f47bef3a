// The arguments of one tool call as JSON text, written as the markup comes.
//
// Strings go out piece by piece; everything else waits for its end, because only then its type is
// known. Nothing is invented: a call that is left open stays without its closing quote or brace, so
// that no client runs half a command. Thread safety: single-threaded.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "chat/parser_repairs.h"
#include "chat/tool_values.h"

namespace fathom {

class ToolCallWriter {
 public:
  // A new call of a tool; null if it was not declared. Must outlive the call.
  void Begin(const ToolSchema* schema);

  // A parameter: begin, text in pieces, end. `recovered`: its closing tag was missing. All append
  // to `out` what is certain.
  void BeginParameter(std::string_view name, const std::optional<std::string>& string_attribute,
                      std::string& out, ParserRepairCounts& repairs);
  void ParameterText(std::string_view text, std::string& out);
  void EndParameter(bool recovered, std::string& out, ParserRepairCounts& repairs);

  // A JSON body, which takes the place of parameters.
  void BodyText(std::string_view text) { held_ += text; }
  [[nodiscard]] bool BodyIsObject() const;

  // Ends of a call. Complete: nothing is missing; in a body or between parameters.
  void Complete(std::string& out, ParserRepairCounts& repairs);
  // What has come is written, but not what would make it valid JSON.
  void LeaveOpen(std::string& out);

 private:
  enum class Part {
    kBetween,
    kString,      // streams
    kHeldString,  // may turn out to be all arguments
    kTyped,       // its type is known at its end
    kIgnored      // repeated
  };
  void WriteKey(std::string_view name, std::string& out);
  void WriteWrapped(std::string& out);
  [[nodiscard]] bool MayWrapArguments(std::string_view name) const;

  const ToolSchema* schema_ = nullptr;
  Part part_ = Part::kBetween;
  bool any_written_ = false;
  std::set<std::string, std::less<>> names_;  // of the parameters so far
  std::string name_;                          // of the parameter at hand
  std::optional<std::string> string_attribute_;
  std::string held_;             // its text, unless it streams; or the body
  bool held_line_feed_ = false;  // of a string that streams: dropped if its closing tag is missing
  std::string wrapped_;          // JSON of the first parameter while it may be all arguments
  std::string wrapped_name_;     // empty: there is none
};

}  // namespace fathom
