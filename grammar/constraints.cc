#include "grammar/constraints.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/check.h"

namespace fathom {

namespace {

bool HasBit(std::span<const uint64_t> bits, TokenId token) {
  const auto word = static_cast<size_t>(token) / 64;
  return token >= 0 && word < bits.size() &&
         (bits[word] >> (static_cast<size_t>(token) % 64) & 1) != 0;
}

// Does nothing for ids beyond the bits.
void ClearBit(std::span<uint64_t> bits, TokenId token) {
  const auto word = static_cast<size_t>(token) / 64;
  if (word < bits.size()) bits[word] &= ~(uint64_t{1} << (static_cast<size_t>(token) % 64));
}

bool IsEmpty(std::span<const uint64_t> bits) {
  return std::all_of(bits.begin(), bits.end(), [](uint64_t word) { return word == 0; });
}

// bits &= mask, where mask may be shorter. True when a bit was cleared.
bool Intersect(std::span<uint64_t> bits, std::span<const uint64_t> mask) {
  uint64_t cleared = 0;
  for (size_t i = 0; i < bits.size(); ++i) {
    const uint64_t keep = i < mask.size() ? mask[i] : 0;
    cleared |= bits[i] & ~keep;
    bits[i] &= keep;
  }
  return cleared != 0;
}

class AllowedTokens final : public TokenConstraint {
 public:
  explicit AllowedTokens(std::span<const TokenId> tokens) {
    FATHOM_CHECK(!tokens.empty(), "a list of allowed tokens needs one");
    first_ = tokens[0];
    for (const TokenId token : tokens) {
      const auto word = static_cast<size_t>(token) / 64;
      if (word >= mask_.size()) mask_.resize(word + 1, 0);
      mask_[word] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
    }
  }

  bool Restrict(std::span<uint64_t> allowed) override { return Intersect(allowed, mask_); }
  void Accept(TokenId /*token*/) override {}
  TokenId Suggest() override { return first_; }

 private:
  std::vector<uint64_t> mask_;
  TokenId first_ = 0;
};

class BadWords final : public TokenConstraint {
 public:
  BadWords(std::vector<std::vector<TokenId>> sequences, TokenId end_token)
      : sequences_(std::move(sequences)), end_token_(end_token) {
    for (const auto& sequence : sequences_) {
      FATHOM_CHECK(!sequence.empty(), "a bad word has tokens");
      max_history_ = std::max(max_history_, sequence.size() - 1);
    }
  }

  bool Restrict(std::span<uint64_t> allowed) override {
    std::vector<TokenId> cleared;
    for (const auto& sequence : sequences_) {
      const size_t num_before = sequence.size() - 1;
      if (num_before > history_.size()) continue;
      const bool is_next = std::equal(sequence.begin(), sequence.end() - 1,
                                      history_.end() - static_cast<std::ptrdiff_t>(num_before));
      if (!is_next || !HasBit(allowed, sequence.back())) continue;
      ClearBit(allowed, sequence.back());
      cleared.push_back(sequence.back());
    }
    if (cleared.empty() || !IsEmpty(allowed)) return !cleared.empty();
    // The whole vocabulary is bad: there is no answer to that but one word of it.
    allowed[static_cast<size_t>(cleared[0]) / 64] |= uint64_t{1}
                                                     << (static_cast<size_t>(cleared[0]) % 64);
    return true;
  }

  void Accept(TokenId token) override {
    history_.push_back(token);
    if (history_.size() > max_history_) history_.pop_front();
  }

  TokenId Suggest() override { return end_token_; }

 private:
  std::vector<std::vector<TokenId>> sequences_;
  TokenId end_token_;
  size_t max_history_ = 0;
  std::deque<TokenId> history_;
};

class ThinkingBudget final : public TokenConstraint {
 public:
  ThinkingBudget(int max_tokens, TokenId think_close, TokenId end_token, bool is_reasoning)
      : num_left_(max_tokens),
        think_close_(think_close),
        end_token_(end_token),
        is_reasoning_(is_reasoning) {}

  bool Restrict(std::span<uint64_t> allowed) override {
    if (!is_reasoning_ || num_left_ > 0) return false;
    const auto word = static_cast<size_t>(think_close_) / 64;
    if (word >= allowed.size()) return false;
    std::vector<uint64_t> mask(word + 1, 0);
    mask[word] = uint64_t{1} << (static_cast<size_t>(think_close_) % 64);
    return Intersect(allowed, mask);
  }

  void Accept(TokenId token) override {
    if (token == think_close_) is_reasoning_ = false;
    if (num_left_ > 0) --num_left_;
  }

  TokenId Suggest() override { return is_reasoning_ ? think_close_ : end_token_; }

 private:
  int num_left_;
  TokenId think_close_, end_token_;
  bool is_reasoning_;
};

class AllOfThem final : public TokenConstraint {
 public:
  explicit AllOfThem(std::vector<std::unique_ptr<TokenConstraint>> parts)
      : parts_(std::move(parts)) {
    FATHOM_CHECK(!parts_.empty(), "nothing to compose");
  }

  bool Restrict(std::span<uint64_t> allowed) override {
    all_.assign(allowed.begin(), allowed.end());
    bool has_cleared = false;
    for (const auto& part : parts_) {
      one_ = all_;
      if (!part->Restrict(one_)) continue;
      both_.assign(allowed.begin(), allowed.end());
      const bool narrows = Intersect(both_, one_);
      if (!narrows || IsEmpty(both_)) continue;
      std::copy(both_.begin(), both_.end(), allowed.begin());
      has_cleared = true;
    }
    last_.assign(allowed.begin(), allowed.end());
    return has_cleared;
  }

  void Accept(TokenId token) override {
    for (const auto& part : parts_) part->Accept(token);
    last_.clear();
  }

  // Of the parts' suggestions the first that Restrict just allowed.
  TokenId Suggest() override {
    if (last_.empty()) return parts_[0]->Suggest();
    for (const auto& part : parts_) {
      const TokenId token = part->Suggest();
      if (HasBit(last_, token)) return token;
    }
    TokenId token = 0;
    while (!HasBit(last_, token) && static_cast<size_t>(token) < last_.size() * 64) ++token;
    return token;
  }

 private:
  std::vector<std::unique_ptr<TokenConstraint>> parts_;
  std::vector<uint64_t> all_, one_, both_, last_;
};

}  // namespace

std::unique_ptr<TokenConstraint> NewAllowedTokens(std::span<const TokenId> tokens) {
  return std::make_unique<AllowedTokens>(tokens);
}

std::unique_ptr<TokenConstraint> NewBadWords(std::vector<std::vector<TokenId>> sequences,
                                             TokenId end_token) {
  return std::make_unique<BadWords>(std::move(sequences), end_token);
}

Result<std::vector<std::vector<TokenId>>> BadWordTokens(const Tokenizer& tokenizer,
                                                        std::span<const std::string> words) {
  std::vector<std::vector<TokenId>> sequences;
  for (const std::string& word : words) {
    const size_t begin = word.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) {
      return InvalidArgument("bad_words: a word needs more than blanks");
    }
    const std::string bare = word.substr(begin);
    FATHOM_ASSIGN_OR_RETURN(const auto plain, tokenizer.Encode(bare, AddedTokens::kMatch));
    FATHOM_ASSIGN_OR_RETURN(const auto spaced, tokenizer.Encode(" " + bare, AddedTokens::kMatch));
    sequences.push_back(plain);
    // A lone space in front of the same tokens forbids nothing more.
    if (!std::equal(spaced.begin() + 1, spaced.end(), plain.begin(), plain.end())) {
      sequences.push_back(spaced);
    }
  }
  return sequences;
}

std::unique_ptr<TokenConstraint> NewThinkingBudget(int max_tokens, TokenId think_close,
                                                   TokenId end_token, bool starts_in_reasoning) {
  return std::make_unique<ThinkingBudget>(max_tokens, think_close, end_token, starts_in_reasoning);
}

std::unique_ptr<TokenConstraint> Compose(
    std::vector<std::unique_ptr<TokenConstraint>> constraints) {
  return std::make_unique<AllOfThem>(std::move(constraints));
}

}  // namespace fathom
