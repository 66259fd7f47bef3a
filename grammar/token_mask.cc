#include "grammar/token_mask.h"

#include <algorithm>
#include <vector>

namespace fathom {

namespace {

// (State, stack) pairs that one mask may look at, which takes up to 100 ms in the worst grammars.
// Ordinary ones need a hundredth of it.
constexpr int64_t kMaxWork = 500'000;

void SetBit(std::span<uint64_t> mask, TokenId token) {
  const auto word = static_cast<size_t>(token) / 64;
  if (word < mask.size()) mask[word] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
}

bool HasBit(std::span<const uint64_t> mask, TokenId token) {
  const auto word = static_cast<size_t>(token) / 64;
  return word < mask.size() && (mask[word] >> (static_cast<size_t>(token) % 64) & 1) != 0;
}

// Continuation bytes [lo, hi] and then `num_more` others lead from `at` to `home`.
bool AllLeadTo(Matcher& matcher, Matcher::Config at, Matcher::Config home, int lo, int hi,
               int num_more) {
  Matcher::Config checked = Matcher::kDead;  // most bytes lead to the same place
  for (int byte = lo; byte <= hi; ++byte) {
    const Matcher::Config to = matcher.StepByte(at, static_cast<uint8_t>(byte));
    if (to == Matcher::kDead || (num_more == 0 && to != home)) return false;
    if (num_more == 0 || to == checked) continue;
    if (!AllLeadTo(matcher, to, home, 0x80, 0xBF, num_more - 1)) return false;
    checked = to;
  }
  return true;
}

// Where every character of plain tokens (TokenTrie) leads from `at`; kDead when they differ.
Matcher::Config AfterAnyPlainChar(Matcher& matcher, Matcher::Config at) {
  const Matcher::Config home = matcher.StepByte(at, 'a');
  if (home == Matcher::kDead) return home;
  for (int byte = 0x20; byte < 0x7F; ++byte) {
    const auto b = static_cast<uint8_t>(byte);
    if (TokenTrie::IsPlainAscii(b) && matcher.StepByte(at, b) != home) return Matcher::kDead;
  }
  for (int lead = 0xC2; lead <= 0xF4; ++lead) {
    const Matcher::Config next = matcher.StepByte(at, static_cast<uint8_t>(lead));
    if (next == Matcher::kDead) return next;
    // What may follow these four is less: no overlong forms, surrogates, codes above U+10FFFF.
    const int lo = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const int hi = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    const int num_more = lead < 0xE0 ? 0 : lead < 0xF0 ? 1 : 2;
    if (!AllLeadTo(matcher, next, home, lo, hi, num_more)) return Matcher::kDead;
  }
  return home;
}

// Whether every plain token can come next, as inside most strings: mostly a character leads back to
// where it came from; where characters are counted, as many as a token may have must fit.
bool TakesPlainTokens(Matcher& matcher, Matcher::Config at, int64_t work_limit) {
  for (int i = 0; i < TokenTrie::kMaxPlainChars; ++i) {
    if (matcher.work() > work_limit) return false;
    const Matcher::Config next = AfterAnyPlainChar(matcher, at);
    if (next == at || next == Matcher::kDead) return next == at;
    at = next;
  }
  return true;
}

}  // namespace

size_t ComputeTokenMask(Matcher& matcher, Matcher::Config config, const TokenTrie& trie,
                        std::span<uint64_t> mask) {
  const int64_t work_limit = matcher.work() + kMaxWork;
  const bool is_in_text = TakesPlainTokens(matcher, config, work_limit);
  const std::vector<TokenTrie::Node>& nodes = is_in_text ? trie.other_nodes() : trie.nodes();
  if (is_in_text) {
    const size_t num_words = std::min(mask.size(), trie.plain_mask().size());
    for (size_t i = 0; i < num_words; ++i) mask[i] |= trie.plain_mask()[i];
  }
  const auto& symbol_of_byte = matcher.grammar().symbol_of_byte;
  size_t num_visited = 0;
  bool has_token = false;
  std::vector<Matcher::Config> path(256, Matcher::kDead);  // by depth
  path[0] = config;
  for (size_t i = 1; i < nodes.size(); ++num_visited) {
    const TokenTrie::Node& node = nodes[i];
    const Matcher::Config from = path[node.depth - size_t{1}];
    const Matcher::Symbol symbol = symbol_of_byte[node.byte];
    // However large the grammar is, something stays.
    const bool may_try = matcher.work() < work_limit || (node.depth == 1 && !has_token) ||
                         matcher.IsKnown(from, symbol);
    const Matcher::Config to = may_try ? matcher.Step(from, symbol) : Matcher::kDead;
    if (to == Matcher::kDead) {
      i = static_cast<size_t>(node.skip);
      continue;
    }
    if (node.token >= 0) {
      SetBit(mask, node.token);
      has_token = true;
    }
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
