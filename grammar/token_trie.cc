#include "grammar/token_trie.h"

#include <algorithm>
#include <utility>

#include "tokenizer/utf8.h"

namespace fathom {

namespace {

std::vector<TokenTrie::Token> TokensOf(const Tokenizer& tokenizer) {
  std::vector<TokenTrie::Token> tokens(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    tokens[i].bytes = tokenizer.TokenBytes(id);
    tokens[i].is_control = tokenizer.FindAddedToken(tokens[i].bytes) == id;
  }
  return tokens;
}

bool IsPlain(std::string_view bytes) {
  const auto num_chars = std::count_if(
      bytes.begin(), bytes.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
  return num_chars <= TokenTrie::kMaxPlainChars &&
         FindInvalidUtf8(bytes) == std::string_view::npos &&
         std::all_of(bytes.begin(), bytes.end(), [](char c) {
           const auto byte = static_cast<uint8_t>(c);
           return byte >= 0x80 || TokenTrie::IsPlainAscii(byte);
         });
}

}  // namespace

TokenTrie::TokenTrie(std::vector<Token> tokens) : tokens_(std::move(tokens)) { Build(); }

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : TokenTrie(TokensOf(tokenizer)) {}

void TokenTrie::Build() {
  std::vector<TokenId> order;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const Token& token = tokens_[i];
    const auto id = static_cast<TokenId>(i);
    if (token.is_control) {
      controls_.try_emplace(token.bytes, id);
    } else if (!token.bytes.empty() && token.bytes.size() <= kMaxTokenBytes) {
      order.push_back(id);
    }
  }
  const auto bytes_of = [this](TokenId id) -> const std::string& {
    return tokens_[static_cast<size_t>(id)].bytes;
  };
  std::sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    const int compared = bytes_of(a).compare(bytes_of(b));  // as unsigned bytes
    return compared != 0 ? compared < 0 : a < b;
  });
  std::vector<TokenId> distinct, others;
  plain_mask_.assign(tokens_.size() / 64 + 1, 0);
  for (const TokenId id : order) {
    if (!distinct.empty() && bytes_of(distinct.back()) == bytes_of(id)) {
      twins_.push_back({id, distinct.back()});
      continue;
    }
    distinct.push_back(id);
    if (IsPlain(bytes_of(id))) {
      plain_mask_[static_cast<size_t>(id) / 64] |= uint64_t{1} << (static_cast<size_t>(id) % 64);
    } else {
      others.push_back(id);
    }
  }
  nodes_ = TreeOf(distinct);
  other_nodes_ = TreeOf(others);
}

std::vector<TokenTrie::Node> TokenTrie::TreeOf(const std::vector<TokenId>& tokens) const {
  std::vector<Node> nodes(1);
  std::vector<int32_t> path = {0};  // nodes of the string before, by depth
  const auto close_to = [&](size_t depth) {
    while (path.size() > depth + 1) {
      nodes[static_cast<size_t>(path.back())].skip = static_cast<int32_t>(nodes.size());
      path.pop_back();
    }
  };
  std::string_view before;
  for (const TokenId id : tokens) {
    const std::string_view bytes = tokens_[static_cast<size_t>(id)].bytes;
    const auto differs = std::mismatch(before.begin(), before.end(), bytes.begin(), bytes.end());
    const auto shared = static_cast<size_t>(differs.second - bytes.begin());
    close_to(shared);
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(static_cast<int32_t>(nodes.size()));
      nodes.push_back(
          {.depth = static_cast<uint16_t>(i + 1), .byte = static_cast<uint8_t>(bytes[i])});
    }
    nodes[static_cast<size_t>(path.back())].token = id;
    before = bytes;
  }
  close_to(0);
  nodes[0].skip = static_cast<int32_t>(nodes.size());
  return nodes;
}

std::string_view TokenTrie::Bytes(TokenId token) const {
  const auto index = static_cast<size_t>(token);
  return token >= 0 && index < tokens_.size() ? std::string_view(tokens_[index].bytes)
                                              : std::string_view();
}

bool TokenTrie::IsControl(TokenId token) const {
  const auto index = static_cast<size_t>(token);
  return token >= 0 && index < tokens_.size() && tokens_[index].is_control;
}

std::optional<TokenId> TokenTrie::FindControl(std::string_view spelling) const {
  const auto found = controls_.find(std::string(spelling));
  if (found == controls_.end()) return std::nullopt;
  return found->second;
}

int32_t TokenTrie::Child(int32_t node, uint8_t byte) const {
  const int32_t end = nodes_[static_cast<size_t>(node)].skip;
  for (int32_t child = node + 1; child < end; child = nodes_[static_cast<size_t>(child)].skip) {
    if (nodes_[static_cast<size_t>(child)].byte == byte) return child;
  }
  return -1;
}

}  // namespace fathom
