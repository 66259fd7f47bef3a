#include "bench/workload.h"

#include <ctime>
#include <utility>

namespace fathom::bench {

std::vector<TokenId> SyntheticTokens(int64_t stream, int64_t count, int vocab_size) {
  // splitmix64: consecutive numbers become unrelated ones, the same on every machine.
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  auto state = static_cast<uint64_t>(stream) << 32;
  // Control tokens come first in the vocabulary.
  constexpr uint64_t kFirst = 32;
  const auto range = static_cast<uint64_t>(vocab_size) - kFirst;
  for (TokenId& token : tokens) {
    uint64_t x = state += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    token = static_cast<TokenId>(kFirst + (x ^ (x >> 31)) % range);
  }
  return tokens;
}

GenerateRequest GreedyRequest(std::vector<TokenId> prompt, int64_t max_tokens) {
  GenerateRequest request;
  request.id = "bench";
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.sampling.temperature = 0.0;
  request.ignore_eos = true;
  return request;
}

double ThreadCpuMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

}  // namespace fathom::bench
