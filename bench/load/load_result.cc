#include "bench/load/load_result.h"

namespace fathom::load {

std::string_view KindName(Outcome::Kind kind) {
  switch (kind) {
    case Outcome::Kind::kOk:
      return "ok";
    case Outcome::Kind::kCancelled:
      return "cancelled";
    case Outcome::Kind::kConnect:
      return "connect";
    case Outcome::Kind::kStatus:
      return "status";
    case Outcome::Kind::kDisconnected:
      return "disconnected";
    case Outcome::Kind::kTimeout:
      return "timeout";
    case Outcome::Kind::kStreamError:
      return "error in stream";
    case Outcome::Kind::kMalformed:
      break;
  }
  return "malformed";
}

void LoadResult::Add(const Outcome& outcome) {
  num_chunks += outcome.num_chunks;
  if (outcome.kind == Outcome::Kind::kCancelled) {
    ++num_cancelled;
    return;
  }
  ++by_status[outcome.status];
  if (outcome.kind != Outcome::Kind::kOk) {
    ++num_failed;
    std::string name(KindName(outcome.kind));
    if (outcome.kind == Outcome::Kind::kStatus) name += " " + std::to_string(outcome.status);
    Errors& same = errors[name];
    if (same.count++ == 0) same.example = outcome.message;
    return;
  }
  ++num_ok;
  const int64_t tokens = outcome.usage.is_known ? outcome.usage.output_tokens : outcome.num_chunks;
  if (!outcome.usage.is_known) ++num_without_usage;
  prompt_tokens += outcome.usage.prompt_tokens;
  cached_tokens += outcome.usage.cached_tokens;
  output_tokens += tokens;
  whole.Add(outcome.end - outcome.start);
  if (outcome.num_chunks == 0) return;  // nothing came before the end
  first_token.Add(outcome.first_chunk - outcome.start);
  if (tokens > 1) token_times.Add((outcome.last_chunk - outcome.first_chunk) / (tokens - 1));
}

}  // namespace fathom::load
