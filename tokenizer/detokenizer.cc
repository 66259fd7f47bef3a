#include "tokenizer/detokenizer.h"

#include "tokenizer/utf8.h"

namespace fathom {

std::string Detokenizer::Push(TokenId id) {
  if (special_tokens_ == SpecialTokens::kSkip && tokenizer_->IsSpecial(id)) return {};
  pending_ += tokenizer_->TokenBytes(id);
  std::string text;
  const size_t num_incomplete = AppendValidUtf8(pending_, text);
  pending_.erase(0, pending_.size() - num_incomplete);
  return text;
}

std::string Detokenizer::Finish() {
  std::string text = LossyUtf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace fathom
