// PrefixMiss: why a prefix was not reused as far as it could have been. Data only; front ends and
// metrics name it too.
#pragma once

#include <string_view>

namespace fathom {

enum class PrefixMiss {
  kNone,           // all that may be reused was
  kDisabled,       // caching is off, for all or for this request
  kMissingBlock,   // the next block of the prefix is not cached: new text, or evicted
  kNoResumePoint,  // the text is cached further on, but nothing to continue from was kept there
};
inline constexpr int kNumPrefixMisses = 4;

// For metrics and logs.
constexpr std::string_view PrefixMissName(PrefixMiss miss) {
  switch (miss) {
    case PrefixMiss::kNone:
      return "none";
    case PrefixMiss::kDisabled:
      return "disabled";
    case PrefixMiss::kMissingBlock:
      return "no_block";
    case PrefixMiss::kNoResumePoint:
      return "no_resume_point";
  }
  return "";
}

}  // namespace fathom
