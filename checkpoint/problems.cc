#include "checkpoint/problems.h"

#include <algorithm>
#include <cstdio>

namespace fathom {

Status Problems::ToStatus(StatusCode code, std::string_view source) const {
  if (empty()) return OkStatus();
  std::string message(source);
  if (count_ == 1) return {code, message + ": " + listed_.front()};
  message += ": " + std::to_string(count_) + " problems:";
  for (const std::string& problem : listed_) message += "\n  " + problem;
  if (count_ > listed_.size()) {
    message += "\n  and " + std::to_string(count_ - listed_.size()) + " more";
  }
  return {code, std::move(message)};
}

std::string Quoted(std::string_view text) {
  constexpr size_t kMaxShown = 120;
  std::string out = "\"";
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
      out += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      out += escaped;
    }
  }
  out += text.size() > kMaxShown ? "...\"" : "\"";
  return out;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

int JsonDepth(std::string_view json) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') {
        ++i;  // whatever is escaped cannot end the string
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      // Stops growing far above any limit, so that no file can overflow it.
      if (depth < 1'000'000) deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
      if (depth < 0) depth = 0;
    }
  }
  return deepest;
}

}  // namespace fathom
