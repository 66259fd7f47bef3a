// Detokenizer: the text of a growing token sequence, in complete UTF-8 only.
//
// A token may end inside a character; its bytes wait until the character is whole or cannot become
// valid. So a U+FFFD, once sent, is never followed by the real character, and the pieces together
// are exactly Tokenizer::Decode of the whole sequence. Tokens that arrive together (speculative
// decoding) are pushed one by one, in order. Single-threaded, one per sequence. The tokenizer must
// outlive it.
#pragma once

#include <string>

#include "base/types.h"
#include "tokenizer/tokenizer.h"

namespace fathom {

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer,
                       SpecialTokens special_tokens = SpecialTokens::kKeep)
      : tokenizer_(&tokenizer), special_tokens_(special_tokens) {}

  // The text that `id` completes; often empty inside a character. Ids without a token add nothing.
  std::string Push(TokenId id);
  // One U+FFFD when an incomplete character is left, else nothing. A new sequence may begin after
  // it.
  std::string Finish();
  // Bytes held back at the moment, 0 to 3.
  [[nodiscard]] size_t num_pending_bytes() const { return pending_.size(); }

 private:
  const Tokenizer* tokenizer_;
  SpecialTokens special_tokens_;
  std::string pending_;  // an incomplete but so far valid sequence
};

}  // namespace fathom
