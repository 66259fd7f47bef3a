// TokenTrie: the byte strings of a vocabulary as a tree, so that a grammar looks at a beginning
// that many tokens share once.
//
// Added tokens (control tokens) are no text: they are left out of the tree and found by their
// spelling. Built once per tokenizer, immutable; any thread may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

class TokenTrie {
 public:
  struct Token {
    std::string bytes;        // empty: the id has no token
    bool is_control = false;  // an added token
  };
  // A node of the tree in preorder: children follow their parent, smaller byte first.
  struct Node {
    TokenId token = -1;  // that ends here
    int32_t skip = 0;    // index of the first node that is not below this one
    uint16_t depth = 0;  // length of the node's string
    uint8_t byte = 0;    // its last byte
  };
  // Two tokens of the same bytes.
  struct Twin {
    TokenId token, same_as;
  };

  static constexpr size_t kMaxTokenBytes = 60'000;  // longer ones are never allowed

  explicit TokenTrie(std::vector<Token> tokens);
  explicit TokenTrie(const Tokenizer& tokenizer);

  // All tokens that are no control tokens. Node 0 is the empty string.
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }
  // Plain tokens, most of a vocabulary: a few whole characters, none of them a control, '"', '\' or
  // '<'. In the middle of text a grammar takes all of them, so that they need no walk: bit t % 64
  // of word t / 64.
  static constexpr int kMaxPlainChars = 16;
  static bool IsPlainAscii(uint8_t byte) {
    return byte >= 0x20 && byte < 0x7F && byte != '"' && byte != '\\' && byte != '<';
  }
  [[nodiscard]] const std::vector<uint64_t>& plain_mask() const { return plain_mask_; }
  // The tree of the others.
  [[nodiscard]] const std::vector<Node>& other_nodes() const { return other_nodes_; }
  [[nodiscard]] const std::vector<Twin>& twins() const { return twins_; }
  [[nodiscard]] int vocab_size() const { return static_cast<int>(tokens_.size()); }

  // Bytes of any token, of control tokens too; empty for an id without token.
  [[nodiscard]] std::string_view Bytes(TokenId token) const;
  [[nodiscard]] bool IsControl(TokenId token) const;
  [[nodiscard]] std::optional<TokenId> FindControl(std::string_view spelling) const;

  // The node for `byte` after `node`; -1 when no token goes on so.
  [[nodiscard]] int32_t Child(int32_t node, uint8_t byte) const;

 private:
  void Build();
  // The tree of `tokens`, which are ordered by their bytes.
  std::vector<Node> TreeOf(const std::vector<TokenId>& tokens) const;

  std::vector<Token> tokens_;
  std::vector<Node> nodes_, other_nodes_;
  std::vector<uint64_t> plain_mask_;
  std::vector<Twin> twins_;
  std::unordered_map<std::string, TokenId> controls_;
};

}  // namespace fathom
