#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "grammar/constraints.h"
#include "grammar/matcher.h"
#include "grammar/text_trigger.h"
#include "grammar/token_mask.h"

namespace fathom {

namespace {

// Masks that took longer to compute than to keep: inside text the same state comes back with every
// token. A full table starts anew.
constexpr size_t kMaxCachedMasks = 16;
constexpr size_t kCacheFromVisited = 64;

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar,
                    std::shared_ptr<const TokenTrie> trie, GrammarConstraintOptions options)
      : trie_(std::move(trie)),
        options_(std::move(options)),
        matcher_(std::move(grammar)),
        think_close_(options_.start_after.has_value()
                         ? std::string(trie_->Bytes(*options_.start_after))
                         : std::string()),
        opener_(options_.opener) {
    FATHOM_CHECK(!options_.end_tokens.empty(), "a grammar constraint needs an end token");
    if (options_.start_after.has_value()) {
      mode_ = Mode::kReasoning;
    } else {
      EnterAnswer();
    }
  }

  bool Restrict(std::span<uint64_t> allowed) override {
    switch (mode_) {
      case Mode::kReasoning:
        return IsLazy() ? false : ForbidBadCrossings(think_close_, allowed);
      case Mode::kWatching:
        return ForbidBadCrossings(opener_, allowed);
      case Mode::kReading:
      case Mode::kEnded:
        break;
    }
    const std::span<const uint64_t> mask = Mask(allowed.size());
    uint64_t cleared = 0;
    for (size_t i = 0; i < allowed.size(); ++i) {
      cleared |= allowed[i] & ~mask[i];
      allowed[i] &= mask[i];
    }
    return cleared != 0;
  }

  void Accept(TokenId token) override {
    if (mode_ == Mode::kReading && IsEndToken(token)) mode_ = Mode::kEnded;
    if (mode_ == Mode::kEnded) return;
    if (mode_ == Mode::kReasoning && token == options_.start_after) return EnterAnswer();
    if (mode_ == Mode::kReading) {
      Compact();
      if (trie_->IsControl(token)) return AcceptControl(token);
    }
    for (const char c : trie_->Bytes(token)) Feed(static_cast<uint8_t>(c));
  }

  TokenId Suggest() override {
    if (mode_ == Mode::kReasoning) return *options_.start_after;
    if (mode_ != Mode::kReading || config_ == Matcher::kDead || matcher_.IsComplete(config_)) {
      return options_.end_tokens[0];
    }
    const TokenId token = ShortestToken(matcher_, config_, *trie_);
    return token >= 0 ? token : options_.end_tokens[0];
  }

 private:
  enum class Mode {
    kReasoning,  // free up to think_close_
    kWatching,   // free up to opener_
    kReading,    // the grammar holds
    kEnded,
  };

  [[nodiscard]] bool IsLazy() const { return !options_.opener.empty(); }
  [[nodiscard]] bool IsEndToken(TokenId token) const {
    const auto& ends = options_.end_tokens;
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  void EnterAnswer() {
    mode_ = IsLazy() ? Mode::kWatching : Mode::kReading;
    opener_.Reset();
    config_ = matcher_.start();
  }

  void Feed(uint8_t byte) {
    switch (mode_) {
      case Mode::kReasoning:
        if (think_close_.Feed(byte)) EnterAnswer();
        return;
      case Mode::kWatching:
        if (opener_.Feed(byte)) {
          mode_ = Mode::kReading;
          config_ = matcher_.start();
        }
        return;
      case Mode::kReading:
        if (config_ != Matcher::kDead) config_ = matcher_.StepByte(config_, byte);
        return LeaveFinishedBlock();
      case Mode::kEnded:
        return;
    }
  }

  void AcceptControl(TokenId token) {
    const std::vector<TokenId>& controls = matcher_.grammar().control_tokens;
    const auto found = std::find(controls.begin(), controls.end(), token);
    if (found == controls.end() || config_ == Matcher::kDead) {
      config_ = Matcher::kDead;
    } else {
      const auto index = static_cast<size_t>(found - controls.begin());
      config_ = matcher_.Step(config_, matcher_.grammar().SymbolOfControl(index));
    }
    LeaveFinishedBlock();
  }

  // A block that is complete, or that somebody broke (a token that was not allowed was forced by
  // other means), no longer holds the text after it.
  void LeaveFinishedBlock() {
    if (IsLazy() && (config_ == Matcher::kDead || matcher_.IsComplete(config_))) EnterAnswer();
  }

  void Compact() {
    if (config_ == Matcher::kDead) return;
    config_ = matcher_.Compact(config_);
    if (matcher_.generation() == masks_generation_) return;
    masks_generation_ = matcher_.generation();
    masks_.clear();
  }

  std::span<const uint64_t> Mask(size_t num_words) {
    const bool is_over = mode_ == Mode::kEnded || config_ == Matcher::kDead;
    const Matcher::Config key = is_over ? Matcher::kDead : config_;
    const auto known = masks_.find(key);
    if (known != masks_.end() && known->second.size() == num_words) return known->second;
    scratch_.assign(num_words, 0);
    size_t num_visited = 0;
    if (!is_over) num_visited = ComputeTokenMask(matcher_, config_, *trie_, scratch_);
    const bool is_stuck =
        std::all_of(scratch_.begin(), scratch_.end(), [](uint64_t word) { return word == 0; });
    // A vocabulary that cannot spell what must come next would be stuck: the text ends there.
    if (is_over || is_stuck || matcher_.IsComplete(config_)) {
      for (const TokenId token : options_.end_tokens) {
        const auto word = static_cast<size_t>(token) / 64;
        if (word < num_words) scratch_[word] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
      }
    }
    if (num_visited < kCacheFromVisited) return scratch_;
    if (masks_.size() >= kMaxCachedMasks) masks_.clear();
    return masks_[key] = scratch_;
  }

  // Free text up to a trigger: of tokens that complete the trigger and go on, only those stay that
  // go on as the grammar begins. The triggers' first byte is found nowhere else in them, so only
  // what was seen of the trigger, or nothing, can be in front of such a token.
  bool ForbidBadCrossings(const TextTrigger& trigger, std::span<uint64_t> allowed) {
    bool has_cleared = ForbidBadCrossings(trigger, 0, allowed);
    if (trigger.num_seen() > 0) {
      has_cleared = ForbidBadCrossings(trigger, trigger.num_seen(), allowed) || has_cleared;
    }
    return has_cleared;
  }

  bool ForbidBadCrossings(const TextTrigger& trigger, size_t num_seen,
                          std::span<uint64_t> allowed) {
    int32_t at = 0;
    for (size_t i = num_seen; i < trigger.text().size() && at >= 0; ++i) {
      at = trie_->Child(at, static_cast<uint8_t>(trigger.text()[i]));
    }
    if (at < 0) return false;
    const std::vector<TokenTrie::Node>& nodes = trie_->nodes();
    const size_t depth = nodes[static_cast<size_t>(at)].depth;
    bool has_cleared = false;
    std::vector<Matcher::Config> path = {matcher_.start()};
    for (int32_t i = at + 1; i < nodes[static_cast<size_t>(at)].skip; ++i) {
      const TokenTrie::Node& node = nodes[static_cast<size_t>(i)];
      path.resize(node.depth - depth);
      const Matcher::Config from = path.back();
      path.push_back(from == Matcher::kDead ? from : matcher_.StepByte(from, node.byte));
      if (path.back() != Matcher::kDead || node.token < 0) continue;
      const auto word = static_cast<size_t>(node.token) / 64;
      if (word >= allowed.size()) continue;
      allowed[word] &= ~(uint64_t{1} << (static_cast<size_t>(node.token) % 64));
      has_cleared = true;
    }
    return has_cleared;
  }

  std::shared_ptr<const TokenTrie> trie_;
  GrammarConstraintOptions options_;
  Matcher matcher_;
  TextTrigger think_close_, opener_;
  Mode mode_ = Mode::kReading;
  Matcher::Config config_ = Matcher::kDead;
  std::unordered_map<Matcher::Config, std::vector<uint64_t>> masks_;
  int masks_generation_ = 0;
  std::vector<uint64_t> scratch_;
};

}  // namespace

std::unique_ptr<TokenConstraint> NewGrammarConstraint(
    std::shared_ptr<const CompiledGrammar> grammar, std::shared_ptr<const TokenTrie> trie,
    GrammarConstraintOptions options) {
  return std::make_unique<GrammarConstraint>(std::move(grammar), std::move(trie),
                                             std::move(options));
}

}  // namespace fathom
