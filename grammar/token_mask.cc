#include "grammar/token_mask.h"

#include <vector>

namespace fathom {

namespace {

// (State, stack) pairs that one mask may look at; tens of milliseconds. Ordinary grammars need a
// hundredth of it.
constexpr int64_t kMaxWork = 4'000'000;

void SetBit(std::span<uint64_t> mask, TokenId token) {
  const auto word = static_cast<size_t>(token) / 64;
  if (word < mask.size()) mask[word] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
}

bool HasBit(std::span<const uint64_t> mask, TokenId token) {
  const auto word = static_cast<size_t>(token) / 64;
  return word < mask.size() && (mask[word] >> (static_cast<size_t>(token) % 64) & 1) != 0;
}

}  // namespace

size_t ComputeTokenMask(Matcher& matcher, Matcher::Config config, const TokenTrie& trie,
                        std::span<uint64_t> mask) {
  const std::vector<TokenTrie::Node>& nodes = trie.nodes();
  const auto& symbol_of_byte = matcher.grammar().symbol_of_byte;
  const int64_t work_limit = matcher.work() + kMaxWork;
  size_t num_visited = 0;
  std::vector<Matcher::Config> path(256, Matcher::kDead);  // by depth
  path[0] = config;
  for (size_t i = 1; i < nodes.size(); ++num_visited) {
    const TokenTrie::Node& node = nodes[i];
    const Matcher::Config from = path[node.depth - size_t{1}];
    const Matcher::Symbol symbol = symbol_of_byte[node.byte];
    // Single bytes are always tried, so that something stays however large the grammar is.
    const bool may_try =
        node.depth == 1 || matcher.work() < work_limit || matcher.IsKnown(from, symbol);
    const Matcher::Config to = may_try ? matcher.Step(from, symbol) : Matcher::kDead;
    if (to == Matcher::kDead) {
      i = static_cast<size_t>(node.skip);
      continue;
    }
    if (node.token >= 0) SetBit(mask, node.token);
    if (node.depth >= path.size()) path.resize(path.size() * 2, Matcher::kDead);
    path[node.depth] = to;
    ++i;
  }
  for (const TokenTrie::Twin& twin : trie.twins()) {
    if (HasBit(mask, twin.same_as)) SetBit(mask, twin.token);
  }
  const std::vector<TokenId>& controls = matcher.grammar().control_tokens;
  for (size_t i = 0; i < controls.size(); ++i) {
    if (matcher.Step(config, matcher.grammar().SymbolOfControl(i)) != Matcher::kDead) {
      SetBit(mask, controls[i]);
    }
  }
  return num_visited;
}

TokenId ShortestToken(Matcher& matcher, Matcher::Config config, const TokenTrie& trie) {
  TokenId best = -1;
  int32_t node = 0;
  while (node >= 0 && !matcher.IsComplete(config)) {
    const Matcher::Symbol symbol = matcher.ShortestStep(config);
    if (symbol < 0) break;
    const int32_t byte = matcher.grammar().byte_of_symbol[static_cast<size_t>(symbol)];
    if (byte >= 256) {
      if (node == 0) best = matcher.grammar().control_tokens[static_cast<size_t>(byte - 256)];
      break;
    }
    node = trie.Child(node, static_cast<uint8_t>(byte));
    if (node >= 0 && trie.nodes()[static_cast<size_t>(node)].token >= 0) {
      best = trie.nodes()[static_cast<size_t>(node)].token;
    }
    config = matcher.Step(config, symbol);
  }
  return best;
}

}  // namespace fathom
