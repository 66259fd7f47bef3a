// Constraints for tests.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/token_constraint.h"

namespace fathom {

// The n-th token must be one of the n-th list; the last list stays.
class ListConstraint final : public TokenConstraint {
 public:
  explicit ListConstraint(std::vector<std::vector<TokenId>> lists) : lists_(std::move(lists)) {}

  bool Restrict(std::span<uint64_t> allowed) override {
    std::fill(allowed.begin(), allowed.end(), 0);
    for (const TokenId token : List()) {
      const auto t = static_cast<size_t>(token);
      allowed[t / 64] |= uint64_t{1} << (t % 64);
    }
    return true;
  }
  void Accept(TokenId token) override { accepted_.push_back(token); }
  TokenId Suggest() override { return List().front(); }

  [[nodiscard]] const std::vector<TokenId>& accepted() const { return accepted_; }

 private:
  [[nodiscard]] const std::vector<TokenId>& List() const {
    return lists_[std::min(accepted_.size(), lists_.size() - 1)];
  }

  std::vector<std::vector<TokenId>> lists_;
  std::vector<TokenId> accepted_;
};

// What may come depends on everything that came: a token's residue modulo 7 is a hash of the tokens
// before it. Now and then it allows all. Allocates nothing.
class HistoryConstraint final : public TokenConstraint {
 public:
  static constexpr uint64_t kModulus = 7;

  bool Restrict(std::span<uint64_t> allowed) override {
    if (is_free()) return false;
    for (size_t t = 0; t < allowed.size() * 64; ++t) {
      if (t % kModulus != hash_ % kModulus) allowed[t / 64] &= ~(uint64_t{1} << (t % 64));
    }
    return true;
  }
  void Accept(TokenId token) override {
    ++num_accepted_;
    hash_ = (hash_ ^ static_cast<uint64_t>(token)) * 0x100000001B3u;
  }
  TokenId Suggest() override { return static_cast<TokenId>(hash_ % kModulus); }

  [[nodiscard]] bool Allows(TokenId token) const {
    return is_free() || static_cast<uint64_t>(token) % kModulus == hash_ % kModulus;
  }
  [[nodiscard]] int num_accepted() const { return num_accepted_; }

 private:
  [[nodiscard]] bool is_free() const { return hash_ % 5 == 0; }

  uint64_t hash_ = 14695981039346656037u;
  int num_accepted_ = 0;
};

}  // namespace fathom
