#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <system_error>
#include <utility>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr int kOfficialVocabSize = 129280;

// The control tokens that prompts and parsers rely on, as published.
constexpr std::pair<TokenId, std::string_view> kOfficialTokens[] = {
    {0, "<｜begin▁of▁sentence｜>"},
    {1, "<｜end▁of▁sentence｜>"},
    {128803, "<｜User｜>"},
    {128804, "<｜Assistant｜>"},
    {128821, "<think>"},
    {128822, "</think>"},
    {128825, "｜DSML｜"},
    {128829, "<｜action｜>"},
    {128830, "<｜query｜>"},
    {128828, "<｜latest_reminder｜>"},
    {128831, "<｜authority｜>"},
    {128832, "<｜domain｜>"},
    {128836, "<｜title｜>"},
    {128845, "<｜read_url｜>"}};

// How each short piece of this text was merged, for its later appearances.
//
// One cache per call: prompts of different clients share nothing (no locks, no timing that tells of
// another's text) and memory goes back at once, while any text long enough to cost time repeats its
// own words. Direct-mapped; entries point into the text and into the ids already written, so
// nothing is copied.
class PieceCache {
 public:
  PieceCache(std::string_view text, bool is_enabled) : text_(text) {
    if (is_enabled) slots_.resize(std::bit_ceil(std::clamp<size_t>(text.size() / 4, 1, kMaxSlots)));
  }

  // Appends the ids of `piece`, a part of the text. `encode` appends them when they are not known.
  template <typename Encode>
  void Append(std::string_view piece, std::vector<TokenId>& ids, const Encode& encode) {
    if (slots_.empty() || piece.size() > kMaxPieceBytes) {
      encode(piece, ids);
      return;
    }
    Slot& slot = slots_[std::hash<std::string_view>{}(piece) & (slots_.size() - 1)];
    const size_t ids_begin = ids.size();
    if (slot.num_bytes == piece.size() && text_.substr(slot.begin, slot.num_bytes) == piece) {
      ids.resize(ids_begin + slot.num_ids);
      std::copy_n(ids.begin() + slot.ids_begin, slot.num_ids,
                  ids.begin() + static_cast<ptrdiff_t>(ids_begin));
      return;
    }
    encode(piece, ids);
    slot = {static_cast<uint32_t>(piece.data() - text_.data()), static_cast<uint32_t>(ids_begin),
            static_cast<uint8_t>(piece.size()), static_cast<uint8_t>(ids.size() - ids_begin)};
  }

 private:
  static constexpr size_t kMaxSlots = 1 << 15;
  static constexpr size_t kMaxPieceBytes = 64;  // longer ones hardly repeat
  struct Slot {
    uint32_t begin = 0, ids_begin = 0;
    uint8_t num_bytes = 0, num_ids = 0;  // 0 bytes: free
  };
  std::string_view text_;
  std::vector<Slot> slots_;
};

Result<std::string> ReadFile(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return NotFound(path.string() + ": no such file");
  std::ifstream file(path, std::ios::binary);
  const uintmax_t num_bytes = fs::file_size(path, error);
  if (!file || error) return NotFound(path.string() + ": cannot be read");
  if (num_bytes > kMaxTokenizerJsonBytes) {
    return InvalidArgument(path.string() + ": " + std::to_string(num_bytes) + " bytes, at most " +
                           std::to_string(kMaxTokenizerJsonBytes));
  }
  std::string text(static_cast<size_t>(num_bytes), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    return DataLoss(path.string() + ": ends early");
  }
  return text;
}

Status CheckText(std::string_view text) {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument("text of " + std::to_string(text.size()) + " bytes, at most 2^31 - 1");
  }
  if (const size_t offset = FindInvalidUtf8(text); offset != std::string_view::npos) {
    return InvalidArgument("text is not valid UTF-8 at byte " + std::to_string(offset));
  }
  return OkStatus();
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerData data, TokenizerOptions tokenizer_options)
      : token_bytes(std::move(data.token_bytes)),
        is_special(token_bytes.size()),
        bpe(data.byte_ids, data.merges),
        options(tokenizer_options) {
    for (const AddedToken& token : data.added_tokens) {
      is_special[static_cast<size_t>(token.id)] = token.special;
    }
    added_tokens = AddedTokenTable(std::move(data.added_tokens));
  }

  // Encodes `text` (checked) with `matches` standing for their ids. Ids in front of the text are
  // kept.
  void AppendIds(std::string_view text, std::span<const AddedTokenMatch> matches,
                 std::vector<TokenId>& ids) const {
    Bpe::Scratch scratch;
    PieceCache cache(text, options.use_piece_cache);
    const auto encode = [&](std::string_view piece, std::vector<TokenId>& out) {
      bpe.Encode(piece, scratch, out);
    };
    const auto append_stretch = [&](size_t begin, size_t end) {
      PieceScanner scanner(text.substr(begin, end - begin));
      for (std::string_view piece; scanner.Next(&piece);) cache.Append(piece, ids, encode);
    };
    size_t begin = 0;
    for (const AddedTokenMatch& match : matches) {
      append_stretch(begin, match.begin);
      ids.push_back(match.id);
      begin = match.end;
    }
    append_stretch(begin, text.size());
  }

  [[nodiscard]] bool IsKnown(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < token_bytes.size();
  }

  std::vector<std::string> token_bytes;  // by id
  std::vector<bool> is_special;          // by id
  size_t num_output_tokens = 0;          // the last ids, of AddOutputTokens
  AddedTokenTable added_tokens;
  Bpe bpe;
  TokenizerOptions options;
  std::optional<TokenId> bos_to_add;  // for plain prompts
  std::vector<std::string> warnings;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const fs::path& path, TokenizerOptions options) {
  std::error_code error;
  const fs::path file = fs::is_directory(path, error) ? path / "tokenizer.json" : path;
  const fs::path config_file = file.parent_path() / "tokenizer_config.json";
  FATHOM_ASSIGN_OR_RETURN(const std::string json, ReadFile(file));
  std::string config_json;
  if (fs::exists(config_file, error)) {
    FATHOM_ASSIGN_OR_RETURN(config_json, ReadFile(config_file));
    if (config_json.empty()) return InvalidArgument(config_file.string() + ": empty file");
  }
  Result<Tokenizer> tokenizer = FromText(json, config_json, options);
  if (tokenizer.ok()) return tokenizer;
  return Status(tokenizer.status().code(),
                file.parent_path().string() + ": " + tokenizer.status().message());
}

Result<Tokenizer> Tokenizer::FromText(std::string_view tokenizer_json,
                                      std::string_view tokenizer_config_json,
                                      TokenizerOptions options) {
  FATHOM_ASSIGN_OR_RETURN(TokenizerData data, ParseTokenizerJson(tokenizer_json));
  TokenizerConfig config;
  if (!tokenizer_config_json.empty()) {
    FATHOM_ASSIGN_OR_RETURN(config, ParseTokenizerConfig(tokenizer_config_json));
  }
  auto impl = std::make_unique<Impl>(std::move(data), options);
  if (config.add_bos_token) {
    impl->bos_to_add = impl->added_tokens.Find(config.bos_token);
    if (!impl->bos_to_add) {
      return InvalidArgument("tokenizer_config.json: add_bos_token is true, but bos_token '" +
                             config.bos_token + "' is no added token of tokenizer.json");
    }
  }
  if (impl->token_bytes.size() == kOfficialVocabSize) {
    for (const auto& [id, content] : kOfficialTokens) {
      const std::optional<TokenId> found = impl->added_tokens.Find(content);
      if (found == id) continue;
      impl->warnings.push_back("tokenizer.json: " + std::string(content) + " has " +
                               (found ? "id " + std::to_string(*found) : "no id") +
                               "; the official vocabulary has id " + std::to_string(id));
    }
  }
  return Tokenizer(std::move(impl));
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text,
                                               AddedTokens added_tokens) const {
  FATHOM_RETURN_IF_ERROR(CheckText(text));
  std::vector<AddedTokenMatch> matches;
  if (added_tokens == AddedTokens::kMatch) {
    impl_->added_tokens.FindAll(text, 0, text.size(), matches);
  }
  std::vector<TokenId> ids;
  impl_->AppendIds(text, matches, ids);
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::EncodePrompt(std::string_view text,
                                                     bool add_special_tokens) const {
  FATHOM_RETURN_IF_ERROR(CheckText(text));
  std::vector<AddedTokenMatch> matches;
  impl_->added_tokens.FindAll(text, 0, text.size(), matches);
  std::vector<TokenId> ids;
  if (add_special_tokens && impl_->bos_to_add) {
    const bool has_bos =
        !matches.empty() && matches[0].begin == 0 && matches[0].id == *impl_->bos_to_add;
    if (!has_bos) ids.push_back(*impl_->bos_to_add);
  }
  impl_->AppendIds(text, matches, ids);
  return ids;
}

Result<std::vector<TokenId>> Tokenizer::EncodeSegments(std::span<const Segment> segments) const {
  std::string text;
  for (const Segment& segment : segments) text += segment.text;
  FATHOM_RETURN_IF_ERROR(CheckText(text));
  std::vector<AddedTokenMatch> matches;
  size_t begin = 0;
  for (const Segment& segment : segments) {
    const size_t end = begin + segment.text.size();
    if (segment.is_template) impl_->added_tokens.FindAll(text, begin, end, matches);
    begin = end;
  }
  std::vector<TokenId> ids;
  impl_->AppendIds(text, matches, ids);
  return ids;
}

std::string_view Tokenizer::TokenBytes(TokenId id) const {
  return impl_->IsKnown(id) ? impl_->token_bytes[static_cast<size_t>(id)] : std::string_view();
}

std::string Tokenizer::DecodeBytes(std::span<const TokenId> ids,
                                   SpecialTokens special_tokens) const {
  std::string bytes;
  for (const TokenId id : ids) {
    if (special_tokens == SpecialTokens::kKeep || !IsSpecial(id)) bytes += TokenBytes(id);
  }
  return bytes;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids, SpecialTokens special_tokens) const {
  return LossyUtf8(DecodeBytes(ids, special_tokens));
}

Result<TokenId> Tokenizer::AddOutputTokens(std::span<const std::string> tokens) {
  constexpr size_t kMaxOutputTokens = size_t{1} << 20;
  if (tokens.size() > kMaxOutputTokens - impl_->num_output_tokens) {
    return InvalidArgument("more than " + std::to_string(kMaxOutputTokens) +
                           " tokens that are not in the vocabulary");
  }
  impl_->num_output_tokens += tokens.size();
  const int first = vocab_size();
  impl_->token_bytes.insert(impl_->token_bytes.end(), tokens.begin(), tokens.end());
  impl_->is_special.resize(impl_->token_bytes.size());
  return first;
}

bool Tokenizer::IsSpecial(TokenId id) const {
  return impl_->IsKnown(id) && impl_->is_special[static_cast<size_t>(id)];
}

std::optional<TokenId> Tokenizer::FindAddedToken(std::string_view content) const {
  return impl_->added_tokens.Find(content);
}

int Tokenizer::vocab_size() const { return static_cast<int>(impl_->token_bytes.size()); }

bool Tokenizer::adds_bos_token() const { return impl_->bos_to_add.has_value(); }

const std::vector<std::string>& Tokenizer::warnings() const { return impl_->warnings; }

}  // namespace fathom
