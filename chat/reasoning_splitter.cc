#include "chat/reasoning_splitter.h"

#include <algorithm>

#include "chat/markers.h"

namespace fathom {
namespace {

void AppendDelta(OutputState kind, std::string_view text, std::vector<OutputDelta>& out) {
  if (text.empty()) return;
  if (out.empty() || out.back().kind != kind) out.push_back({kind, std::string()});
  out.back().text += text;
}

}  // namespace

std::vector<OutputDelta> ReasoningSplitter::Push(std::string_view text) {
  std::vector<OutputDelta> out;
  pending_ += text;
  const std::string_view all = pending_;
  size_t at = 0;
  while (at < all.size()) {
    const size_t mark_at = std::min(all.find('<', at), all.size());
    Emit(all.substr(at, mark_at - at), out);
    at = mark_at;
    const std::string_view rest = all.substr(at);
    if (rest.starts_with(markers::kThinkOpen)) {
      leading_space_.clear();  // empty if content began
      state_ = OutputState::kReasoning;
      at += markers::kThinkOpen.size();
    } else if (rest.starts_with(markers::kThinkClose)) {
      state_ = OutputState::kContent;
      at += markers::kThinkClose.size();
    } else if (rest.starts_with(markers::kEos)) {
      at += markers::kEos.size();
    } else if (markers::kThinkOpen.starts_with(rest) || markers::kThinkClose.starts_with(rest) ||
               markers::kEos.starts_with(rest)) {
      break;  // may become a mark, or nothing is left
    } else {
      Emit("<", out);
      ++at;
    }
  }
  pending_.erase(0, at);
  return out;
}

std::vector<OutputDelta> ReasoningSplitter::Finish() {
  std::vector<OutputDelta> out;
  const std::string pending = std::move(pending_);
  pending_.clear();
  Emit(pending, out);
  AppendDelta(OutputState::kContent, leading_space_, out);
  leading_space_.clear();
  return out;
}

void ReasoningSplitter::Emit(std::string_view text, std::vector<OutputDelta>& out) {
  if (state_ == OutputState::kContent && !content_began_) {
    const size_t first = std::min(text.find_first_not_of(" \t\n\r\v\f"), text.size());
    leading_space_ += text.substr(0, first);
    text.remove_prefix(first);
    if (text.empty()) return;
    content_began_ = true;
    AppendDelta(state_, leading_space_, out);
    leading_space_.clear();
  }
  AppendDelta(state_, text, out);
}

}  // namespace fathom
