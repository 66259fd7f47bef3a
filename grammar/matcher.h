// Matcher: which texts of a grammar are still possible after what was read so far.
//
// A nondeterministic pushdown machine. What is open after a text is a configuration: a set of
// (state, stack) pairs. Stacks share their lower parts, and stacks that wait for the same rule
// share that part too (a node has a set of return addresses), so that ambiguity costs memory in
// proportion to the text, not exponentially. Nodes and configurations are unique and numbered, and
// a step that was taken once is remembered: a repeated situation costs one look-up per byte.
// Single-threaded: one per sequence, owned by its constraint.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/compiled_grammar.h"

namespace fathom {

class Matcher {
 public:
  using Config = int32_t;
  using Symbol = CompiledGrammar::Symbol;
  static constexpr Config kDead = -1;

  // The last owner of the grammar is whoever drops it last: matchers of several requests share it.
  explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar);

  [[nodiscard]] const CompiledGrammar& grammar() const { return *grammar_; }
  [[nodiscard]] Config start() const { return start_; }
  // kDead when the symbol cannot come next.
  Config Step(Config from, Symbol symbol) {
    const Config known = Known(from, symbol);
    return known != kUnknown ? known : Compute(from, symbol);
  }
  Config StepByte(Config from, uint8_t byte) { return Step(from, grammar_->symbol_of_byte[byte]); }
  Config StepText(Config from, std::string_view text);
  [[nodiscard]] bool IsKnown(Config from, Symbol symbol) const {
    return Known(from, symbol) != kUnknown;
  }

  // The text so far is a text of the grammar.
  [[nodiscard]] bool IsComplete(Config config) const { return At(config).is_complete; }
  // Symbols of the shortest completion.
  [[nodiscard]] int64_t Distance(Config config) const { return At(config).distance; }
  // A next symbol of a shortest completion; -1 when nothing can follow.
  Symbol ShortestStep(Config config);

  // Grows with every (state, stack) pair looked at; for callers that bound their work.
  [[nodiscard]] int64_t work() const { return work_; }
  // Forgets everything but `config` if too much is remembered; returns its new number. Others
  // become invalid.
  Config Compact(Config config);
  // Changes when Compact has renumbered.
  [[nodiscard]] int generation() const { return generation_; }

 private:
  static constexpr Config kUnknown = -2;
  struct Item {
    int32_t state = 0, node = 0;
    auto operator<=>(const Item&) const = default;
  };
  struct Frame {
    int32_t state = 0, node = 0;  // where to go on; state kEnd: the text may end
    auto operator<=>(const Frame&) const = default;
  };
  struct Node {
    int32_t begin = 0, end = 0;  // in frames_
    int32_t same_hash = -1;
    int64_t distance = 0;
  };
  struct ConfigData {
    int32_t begin = 0, end = 0;  // in items_
    int32_t same_hash = -1;
    bool is_complete = false;
    int64_t distance = 0;
  };
  // Items in order of insertion, each once.
  class ItemSet {
   public:
    void Clear();
    void Insert(Item item);
    [[nodiscard]] const std::vector<Item>& items() const { return items_; }

   private:
    void Grow();
    std::vector<Item> items_;
    std::vector<int32_t> slots_;  // -1 or index into items_; size a power of two
  };

  [[nodiscard]] const ConfigData& At(Config config) const {
    return configs_[static_cast<size_t>(config)];
  }
  [[nodiscard]] Config Known(Config from, Symbol symbol) const {
    return next_[static_cast<size_t>(from) * num_symbols_ + static_cast<size_t>(symbol)];
  }
  void Reset();
  Config Compute(Config from, Symbol symbol);
  // Completes set_ by returns and calls and numbers the result.
  Config Close();
  bool PopFinished();
  void PushCalls();
  void AddCalls(Item item);
  int32_t InternNode(std::vector<Frame>& frames);
  Config InternConfig(std::vector<Item>& items, bool is_complete);
  [[nodiscard]] const CompiledGrammar::State& StateOf(int32_t state) const {
    return grammar_->states[static_cast<size_t>(state)];
  }

  std::shared_ptr<const CompiledGrammar> grammar_;
  size_t num_symbols_ = 0;
  Config start_ = kDead;
  std::vector<Node> nodes_;
  std::vector<Frame> frames_;
  std::vector<ConfigData> configs_;
  std::vector<Item> items_;
  std::vector<Config> next_;  // [config, symbol]
  std::unordered_map<uint64_t, int32_t> node_of_hash_, config_of_hash_;
  int64_t work_ = 0;
  int generation_ = 0;

  // Working memory of Close.
  ItemSet set_;
  std::vector<std::vector<Frame>> called_;            // by rule
  std::vector<std::pair<int32_t, RuleId>> to_enter_;  // heap of (rank, rule), smallest first
  size_t num_frames_ = 0;
};

}  // namespace fathom
