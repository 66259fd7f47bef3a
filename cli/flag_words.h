// Flags and their values as words: the flags that there are, how a command line spells them, and
// what the words for switches, lists and parts of JSON objects mean. Thread safety: pure functions.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cli/vllm_flags.h"

namespace fathom::cli {

struct FlagInfo {
  std::string name;  // long, without dashes in front
  FlagKind kind = FlagKind::kValue;
  std::vector<std::string> short_names = {};  // one letter each
  std::vector<std::string> other_names = {};  // long ones that mean the same
};

// All flags that there are.
class FlagCatalogue {
 public:
  void Add(FlagInfo flag);
  [[nodiscard]] const FlagInfo* Find(std::string_view name) const;
  // As Find, also by other names, and "no-x" finds the switch x.
  struct Match {
    const FlagInfo* flag = nullptr;
    bool negated = false;
  };
  [[nodiscard]] Match FindOrNegated(std::string_view name) const;
  [[nodiscard]] const FlagInfo* FindShort(std::string_view name) const;
  // "; did you mean --port?", or nothing where no name is close.
  [[nodiscard]] std::string Suggestion(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, FlagInfo, std::less<>>& flags() const { return flags_; }

 private:
  std::map<std::string, FlagInfo, std::less<>> flags_;
};

// What one place says. kJson values are whole objects afterwards, put together from dotted keys.
using Layer = std::map<std::string, std::vector<std::string>, std::less<>>;

// `arguments` are those behind "serve". The first word that is no flag is the model.
Layer ReadCommandLine(const FlagCatalogue& catalogue, std::span<const std::string> arguments,
                      std::vector<std::string>* problems);

// "'true' or 'false'"; also yes, no, on, off, 1, 0 in any case. Empty for anything else.
std::string ParseSwitch(std::string_view text);
// Sets `path` ("a.b"; a + behind it appends to a list) of the JSON object `object`, which may be
// empty. A value that is no JSON is a string; True, False and None are taken as Python writes them.
Status SetJsonPath(std::string_view path, std::string_view value, std::string* object);
// kInvalidArgument for JSON that is nested deeper than any option's value.
Status CheckJsonDepth(std::string_view json);
// ["a", "b"] as two values; anything else as it is.
void AppendListValue(const std::string& text, std::vector<std::string>* values);

}  // namespace fathom::cli
