#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace fathom {
namespace {

uint8_t ByteAt(const AddedToken& token, size_t i) { return static_cast<uint8_t>(token.content[i]); }

}  // namespace

AddedTokenTable::AddedTokenTable(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  // std::string compares bytes as unsigned, which LongestPrefix relies on.
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    Range& range = by_first_byte_[ByteAt(tokens_[i], 0)];
    if (range.end == 0) range.begin = i;
    range.end = i + 1;
  }
}

const AddedToken* AddedTokenTable::LongestPrefix(std::string_view text) const {
  Range range = by_first_byte_[static_cast<uint8_t>(text[0])];
  const AddedToken* longest = nullptr;
  // Invariant: tokens in `range` agree with `text` in their first `depth` bytes; of those, the one
  // that ends there sorts first.
  for (size_t depth = 1; range.begin < range.end; ++depth) {
    if (tokens_[range.begin].content.size() == depth) longest = &tokens_[range.begin++];
    if (depth == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[depth]);
    const auto first = tokens_.begin();
    const auto begin = std::partition_point(
        first + static_cast<ptrdiff_t>(range.begin), first + static_cast<ptrdiff_t>(range.end),
        [&](const AddedToken& token) { return ByteAt(token, depth) < byte; });
    const auto end =
        std::partition_point(begin, first + static_cast<ptrdiff_t>(range.end),
                             [&](const AddedToken& token) { return ByteAt(token, depth) == byte; });
    range = {static_cast<size_t>(begin - first), static_cast<size_t>(end - first)};
  }
  return longest;
}

void AddedTokenTable::FindAll(std::string_view text, size_t begin, size_t end,
                              std::vector<AddedTokenMatch>& out) const {
  for (size_t i = begin; i < end;) {
    const Range& range = by_first_byte_[static_cast<uint8_t>(text[i])];
    const AddedToken* token =
        range.begin < range.end ? LongestPrefix(text.substr(i, end - i)) : nullptr;
    if (token == nullptr) {
      ++i;
      continue;
    }
    out.push_back({i, i + token->content.size(), token->id});
    i += token->content.size();
  }
}

std::optional<TokenId> AddedTokenTable::Find(std::string_view content) const {
  const auto it = std::lower_bound(
      tokens_.begin(), tokens_.end(), content,
      [](const AddedToken& token, std::string_view value) { return token.content < value; });
  if (it == tokens_.end() || it->content != content) return std::nullopt;
  return it->id;
}

}  // namespace fathom
