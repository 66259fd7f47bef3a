// Tokenizer: text to token ids and back, as the tokenizer.json of a DeepSeek-V3/V4 checkpoint says.
//
// Encoding finds added tokens (control tokens such as <｜User｜>) in the raw text, cuts the
// stretches between them into pieces (pretokenizer.h) and merges the bytes of each piece (bpe.h).
// Whether added tokens are looked for is the caller's choice at every call, because text that a
// client sent must never become a control token. Immutable after Load but for AddOutputTokens,
// which belongs to whoever loads; any thread may call any const function.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/types.h"

namespace fathom {

enum class AddedTokens {
  kMatch,   // spellings of added tokens become their ids
  kIgnore,  // they are text like any other
};

enum class SpecialTokens { kKeep, kSkip };

// A part of a chat prompt: the template's own words, or something that came from a client.
struct Segment {
  std::string text;
  bool is_template = false;
};

struct TokenizerOptions {
  // Remembers, within one call, how short pieces were merged. Never changes ids; off in tests and
  // when measuring what it brings.
  bool use_piece_cache = true;
};

class Tokenizer {
 public:
  // `path` is a model directory or its tokenizer.json; tokenizer_config.json beside it is read when
  // there. kNotFound, kInvalidArgument (damaged file), kUnimplemented (another kind of tokenizer).
  static Result<Tokenizer> Load(const std::filesystem::path& path, TokenizerOptions options = {});
  // From the files' contents; an empty config counts as none.
  static Result<Tokenizer> FromText(std::string_view tokenizer_json,
                                    std::string_view tokenizer_config_json = {},
                                    TokenizerOptions options = {});

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // kInvalidArgument when the text is not valid UTF-8 (the message has the offset) or is larger
  // than 2^31 - 1 bytes. Nothing is added in front or behind.
  [[nodiscard]] Result<std::vector<TokenId>> Encode(std::string_view text,
                                                    AddedTokens added_tokens) const;
  // A plain prompt (/v1/completions, /tokenize): matches added tokens and, when
  // `add_special_tokens` and the checkpoint's add_bos_token say so, puts BOS in front unless the
  // text starts with it.
  [[nodiscard]] Result<std::vector<TokenId>> EncodePrompt(std::string_view text,
                                                          bool add_special_tokens) const;
  // A chat prompt. Added tokens are found inside template segments only; a spelling put together
  // from two segments is none. What lies between two of them is joined over segment borders before
  // it is cut into pieces, so the ids are those of Encode(joined text, kMatch) whenever no client
  // segment holds or completes a spelling. Errors as Encode, for the joined text.
  [[nodiscard]] Result<std::vector<TokenId>> EncodeSegments(
      std::span<const Segment> segments) const;

  // The exact bytes, which may be part of a character. Empty for an id that has no token, be it out
  // of range or a gap of the table.
  [[nodiscard]] std::string_view TokenBytes(TokenId id) const;
  // All tokens' bytes in order.
  [[nodiscard]] std::string DecodeBytes(std::span<const TokenId> ids,
                                        SpecialTokens special_tokens) const;
  // The same as text: each maximal broken part becomes one U+FFFD.
  [[nodiscard]] std::string Decode(std::span<const TokenId> ids,
                                   SpecialTokens special_tokens) const;

  // Gives each of `tokens` (exact bytes, any) an id behind all others and returns the first of
  // them. Such tokens exist in answers only: they decode, no text encodes to them. For engines that
  // say what they are told to (replay/). kInvalidArgument when there are more than 2^20 of them.
  Result<TokenId> AddOutputTokens(std::span<const std::string> tokens);

  // The `special` flag of an added token. V3 and V4 leave it false for some control tokens (User
  // and Assistant, the think and DSML marks), so it does not tell control tokens from text.
  [[nodiscard]] bool IsSpecial(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> FindAddedToken(std::string_view content) const;
  // One more than the largest id. The model's own vocab_size may be larger.
  [[nodiscard]] int vocab_size() const;
  [[nodiscard]] bool adds_bos_token() const;
  // One line per thing to log at start: control tokens of the official vocabulary (129,280 ids)
  // that are not where that vocabulary has them.
  [[nodiscard]] const std::vector<std::string>& warnings() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom
