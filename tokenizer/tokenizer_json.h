// Reads tokenizer.json and tokenizer_config.json into plain data, and refuses what this code would
// tokenise differently from the file's meaning. Both files may be hostile: every failure is a
// Status. Pure functions; any thread.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"

namespace fathom {

// Largest file that is read; the official one has 7.8 MB.
inline constexpr size_t kMaxTokenizerJsonBytes = size_t{32} << 20;

struct TokenizerData {
  std::vector<std::string> token_bytes;  // by id; empty for an id without a token
  std::array<TokenId, 256> byte_ids{};
  std::vector<MergeRule> merges;  // in order of precedence
  std::vector<AddedToken> added_tokens;
};

// kInvalidArgument: not JSON, or inconsistent. kUnimplemented: a well-formed file of another kind
// of tokenizer (model type, normalizer, pre-tokenizer, options that change ids).
Result<TokenizerData> ParseTokenizerJson(std::string_view text);

struct TokenizerConfig {
  bool add_bos_token = false;
  std::string bos_token;  // empty when the file names none
};

// add_bos_token counts as false when it is not written, as for the class that V4 uses.
Result<TokenizerConfig> ParseTokenizerConfig(std::string_view text);

}  // namespace fathom
