// The flags of `vllm serve` that are no options of fathom: which are accepted with a warning, and
// which are refused unless they ask for what fathom does anyway.
//
// One table; a flag is a line of it. Flags that fathom honours are ordinary options
// (serve_options.h). Thread safety: pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fathom::cli {

// What may stand behind a flag.
enum class FlagKind {
  kSwitch,    // nothing; there is a --no- form
  kValue,     // one value
  kRepeated,  // one value, and the flag may be given several times
  kList,      // one or more values
  kJson       // a JSON object, or --flag.key value
};

enum class Verdict {
  kFine,  // nothing to say: fathom does so anyway
  kWarn,  // accepted without effect
  kRefuse
};

struct Judgement {
  Verdict verdict = Verdict::kFine;
  std::string text;  // what fathom does instead, or why not and what to use
};

struct VllmFlag {
  std::string_view name;  // without dashes in front
  FlagKind kind = FlagKind::kValue;
  Verdict otherwise = Verdict::kWarn;  // of values that are not in `fine`
  std::string_view fine;               // values with | between them; small letters
  std::string_view text;
  // Where a value needs more than that; `fine`, `otherwise` and `text` are not used then.
  Judgement (*judge)(const std::string& value) = nullptr;
};

std::span<const VllmFlag> VllmFlags();
const VllmFlag* FindVllmFlag(std::string_view name);  // null for others

// The worst that any of the values gets. Switches have the value "true" or "false".
Judgement Judge(const VllmFlag& flag, const std::vector<std::string>& values);

// "tp" -> "tensor-parallel-size": vLLM's short names of more than one letter, and those of one that
// fathom has no other use for. Empty for others.
std::string_view LongNameOf(std::string_view short_name);

// Names of all flags that a value can make a warning (or a refusal) of, for the help.
std::string ListFlags(Verdict verdict);
// The table with its texts, for --help-all.
std::string DescribeFlags();

}  // namespace fathom::cli
