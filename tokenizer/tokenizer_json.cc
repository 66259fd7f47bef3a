#include "tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 32;        // the real file has 6
constexpr uint64_t kMaxIds = 1u << 20;  // of the official vocabulary: 129,280
constexpr size_t kMaxAddedTokenBytes = 256;
constexpr size_t kMaxQuotedBytes = 80;

// The three Split regexes of the published file, with the characters written as escapes where files
// differ (see CanonicalRegex).
constexpr std::string_view kSplitRegexes[] = {
    R"(\p{N}{1,3})", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+",
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)re"
    R"re(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)re"};

std::string Quote(std::string_view text) {
  if (text.size() <= kMaxQuotedBytes) return "'" + std::string(text) + "'";
  return "'" + LossyUtf8(text.substr(0, kMaxQuotedBytes)) + "...'";
}

const json* Find(const json& object, const char* key) {
  const auto it = object.find(key);  // end() when `object` is no object
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

const std::string* FindString(const json& object, const char* key) {
  const json* value = Find(object, key);
  return value == nullptr ? nullptr : value->get_ptr<const std::string*>();
}

bool HasType(const json* object, std::string_view type) {
  const std::string* found = object == nullptr ? nullptr : FindString(*object, "type");
  return found != nullptr && *found == type;
}

std::string TypeOf(const json* object) {
  if (object == nullptr) return "none";
  const std::string* type = FindString(*object, "type");
  return type == nullptr ? "one without type" : Quote(*type);
}

bool IsFalseOrAbsent(const json& object, const char* key) {
  const json* value = Find(object, key);
  return value == nullptr || (value->is_boolean() && !value->get<bool>());
}

std::optional<TokenId> IdOf(const json& value) {
  const auto* id = value.get_ptr<const json::number_unsigned_t*>();
  if (id == nullptr || *id >= kMaxIds) return std::nullopt;
  return static_cast<TokenId>(*id);
}

// A parser that builds a tree needs much memory per '[' of a file made of nothing else.
bool IsTooDeep(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

Result<json> ParseObject(std::string_view text, const char* name) {
  if (text.size() > kMaxTokenizerJsonBytes) {
    return InvalidArgument(std::string(name) + ": larger than " +
                           std::to_string(kMaxTokenizerJsonBytes) + " bytes");
  }
  if (IsTooDeep(text)) {
    return InvalidArgument(std::string(name) + ": nested deeper than " + std::to_string(kMaxDepth));
  }
  json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return InvalidArgument(std::string(name) + ": not valid JSON");
  if (!root.is_object()) return InvalidArgument(std::string(name) + ": not a JSON object");
  return root;
}

// Writers spell the same regex with CR and LF raw or escaped, and with or without \" for ".
std::string CanonicalRegex(std::string_view regex) {
  std::string out;
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '\r') {
      out += "\\r";
    } else if (regex[i] == '\n') {
      out += "\\n";
    } else if (regex[i] == '\\' && i + 1 < regex.size()) {
      if (regex[i + 1] != '"') out += '\\';
      out += regex[++i];
    } else {
      out += regex[i];
    }
  }
  return out;
}

Status CheckSplit(const json& step, size_t index) {
  const std::string where = "tokenizer.json: pre_tokenizer step " + std::to_string(index + 1);
  if (!HasType(&step, "Split")) {
    return Unimplemented(where + ": found " + TypeOf(&step) + ", expected 'Split'");
  }
  const json* pattern = Find(step, "pattern");
  const std::string* regex = pattern == nullptr ? nullptr : FindString(*pattern, "Regex");
  if (regex == nullptr || CanonicalRegex(*regex) != kSplitRegexes[index]) {
    return Unimplemented(where + ": found regex " + (regex ? Quote(*regex) : "none") +
                         ", expected that of the DeepSeek-V3 tokenizer");
  }
  const std::string* behavior = FindString(step, "behavior");
  if (behavior == nullptr || *behavior != "Isolated" || !IsFalseOrAbsent(step, "invert")) {
    return Unimplemented(where + ": expected behavior 'Isolated' and invert false");
  }
  return OkStatus();
}

// Everything around the model that could change ids.
Status CheckPipeline(const json& root) {
  for (const char* key : {"truncation", "padding"}) {
    if (Find(root, key) != nullptr) {
      return Unimplemented(std::string("tokenizer.json: ") + key + " is set, expected null");
    }
  }
  if (const json* normalizer = Find(root, "normalizer"); normalizer != nullptr) {
    const json* steps = Find(*normalizer, "normalizers");
    if (!HasType(normalizer, "Sequence") || steps == nullptr || !steps->is_array() ||
        !steps->empty()) {
      return Unimplemented("tokenizer.json: found normalizer " + TypeOf(normalizer) +
                           ", expected an empty 'Sequence'");
    }
  }
  const json* pre_tokenizer = Find(root, "pre_tokenizer");
  const json* steps =
      HasType(pre_tokenizer, "Sequence") ? Find(*pre_tokenizer, "pretokenizers") : nullptr;
  constexpr size_t kNumSplits = std::size(kSplitRegexes);
  if (steps == nullptr || !steps->is_array() || steps->size() != kNumSplits + 1) {
    return Unimplemented("tokenizer.json: found pre_tokenizer " + TypeOf(pre_tokenizer) +
                         ", expected a 'Sequence' of three 'Split' and one 'ByteLevel'");
  }
  for (size_t i = 0; i < kNumSplits; ++i) FATHOM_RETURN_IF_ERROR(CheckSplit((*steps)[i], i));
  const json& byte_level = (*steps)[kNumSplits];
  const json* use_regex = Find(byte_level, "use_regex");  // true when absent
  if (!HasType(&byte_level, "ByteLevel") || !IsFalseOrAbsent(byte_level, "add_prefix_space") ||
      Find(byte_level, "add_prefix_space") == nullptr || use_regex == nullptr ||
      !IsFalseOrAbsent(byte_level, "use_regex")) {
    return Unimplemented(
        "tokenizer.json: last pre_tokenizer step: expected 'ByteLevel' with add_prefix_space and "
        "use_regex false");
  }
  const json* post_processor = Find(root, "post_processor");
  if (post_processor != nullptr && !HasType(post_processor, "ByteLevel")) {
    return Unimplemented("tokenizer.json: found post_processor " + TypeOf(post_processor) +
                         ", expected 'ByteLevel'");
  }
  if (const json* decoder = Find(root, "decoder"); !HasType(decoder, "ByteLevel")) {
    return Unimplemented("tokenizer.json: found decoder " + TypeOf(decoder) +
                         ", expected 'ByteLevel'");
  }
  return OkStatus();
}

Status CheckModelOptions(const json* model) {
  if (!HasType(model, "BPE")) {
    return Unimplemented("tokenizer.json: found model " + TypeOf(model) + ", expected 'BPE'");
  }
  for (const char* key : {"dropout", "unk_token"}) {
    if (Find(*model, key) != nullptr) {
      return Unimplemented(std::string("tokenizer.json: model.") + key + " is set, expected null");
    }
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json* value = Find(*model, key);
    const std::string* text = FindString(*model, key);
    if (value != nullptr && (text == nullptr || !text->empty())) {
      return Unimplemented(std::string("tokenizer.json: model.") + key + " is set, expected null");
    }
  }
  // fuse_unk has no meaning without unk_token.
  for (const char* key : {"byte_fallback", "ignore_merges"}) {
    if (!IsFalseOrAbsent(*model, key)) {
      return Unimplemented(std::string("tokenizer.json: model.") + key + " is set, expected false");
    }
  }
  return OkStatus();
}

// The vocabulary, ordered by symbols. Sorted and not hashed: a file could be made of keys that all
// collide.
class Vocab {
 public:
  // In ascending order of `symbols`, which must outlive this.
  void Append(std::string_view symbols, TokenId id) { entries_.emplace_back(symbols, id); }
  [[nodiscard]] std::optional<TokenId> Find(std::string_view symbols) const {
    const auto it = std::lower_bound(
        entries_.begin(), entries_.end(), symbols,
        [](const auto& entry, std::string_view value) { return entry.first < value; });
    if (it == entries_.end() || it->first != symbols) return std::nullopt;
    return it->second;
  }
  [[nodiscard]] const auto& entries() const { return entries_; }
  [[nodiscard]] size_t size() const { return entries_.size(); }

 private:
  std::vector<std::pair<std::string_view, TokenId>> entries_;
};

Result<Vocab> ReadVocab(const json& model) {
  const json* vocab = Find(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return InvalidArgument("tokenizer.json: model.vocab is missing or not an object");
  }
  Vocab ids;
  std::vector<bool> is_taken(vocab->size());
  for (const auto& [symbols, value] : vocab->items()) {
    const std::optional<TokenId> id = IdOf(value);
    // Distinct ids below the number of entries leave no gap (a repeated key would).
    if (!id || static_cast<size_t>(*id) >= vocab->size() || is_taken[static_cast<size_t>(*id)]) {
      return InvalidArgument("tokenizer.json: model.vocab: id of " + Quote(symbols) +
                             " is not a number below " + std::to_string(vocab->size()) +
                             " that no other entry has");
    }
    is_taken[static_cast<size_t>(*id)] = true;
    ids.Append(symbols, *id);  // JSON objects of this library are ordered by key
  }
  return ids;
}

// Neither an id nor a content twice.
Status CheckDistinct(std::vector<AddedToken> tokens) {
  const auto repeated = [&tokens](const auto& field) -> const AddedToken* {
    std::sort(tokens.begin(), tokens.end(),
              [&](const AddedToken& a, const AddedToken& b) { return field(a) < field(b); });
    const auto it = std::adjacent_find(
        tokens.begin(), tokens.end(),
        [&](const AddedToken& a, const AddedToken& b) { return field(a) == field(b); });
    return it == tokens.end() ? nullptr : &*it;
  };
  const AddedToken* token = repeated([](const AddedToken& t) { return t.id; });
  if (token == nullptr) {
    token = repeated([](const AddedToken& t) -> const std::string& { return t.content; });
  }
  if (token == nullptr) return OkStatus();
  return InvalidArgument("tokenizer.json: added_tokens: id " + std::to_string(token->id) +
                         " or content " + Quote(token->content) + " appears twice");
}

Result<std::vector<AddedToken>> ReadAddedTokens(const json& root, const Vocab& vocab) {
  std::vector<AddedToken> tokens;
  const json* list = Find(root, "added_tokens");
  if (list == nullptr) return tokens;
  if (!list->is_array()) return InvalidArgument("tokenizer.json: added_tokens is not a list");
  for (const json& entry : *list) {
    const std::string where = "tokenizer.json: added_tokens " + std::to_string(tokens.size());
    const std::string* content = FindString(entry, "content");
    if (content == nullptr || content->empty() || content->size() > kMaxAddedTokenBytes) {
      return InvalidArgument(where + ": content is not a text of 1 to " +
                             std::to_string(kMaxAddedTokenBytes) + " bytes");
    }
    const json* id_value = Find(entry, "id");
    const std::optional<TokenId> id = id_value == nullptr ? std::nullopt : IdOf(*id_value);
    if (!id) {
      return InvalidArgument(where + ": id is not a number below " + std::to_string(kMaxIds));
    }
    const std::optional<TokenId> vocab_id = vocab.Find(*content);
    const bool is_vocab_id = static_cast<size_t>(*id) < vocab.size();
    if (vocab_id ? *vocab_id != *id : is_vocab_id) {
      return InvalidArgument(where + ": id " + std::to_string(*id) + " of " + Quote(*content) +
                             " contradicts model.vocab");
    }
    for (const char* key : {"lstrip", "rstrip", "single_word"}) {
      if (!IsFalseOrAbsent(entry, key)) {
        return Unimplemented(where + ": " + key + " is set, expected false");
      }
    }
    const json* special = Find(entry, "special");
    if (special != nullptr && !special->is_boolean()) {
      return InvalidArgument(where + ": special is not a boolean");
    }
    tokens.push_back({*id, *content, special != nullptr && special->get<bool>()});
  }
  FATHOM_RETURN_IF_ERROR(CheckDistinct(tokens));
  return tokens;
}

// Both spellings: "A B" and ["A", "B"].
std::optional<std::pair<std::string_view, std::string_view>> SplitMerge(const json& merge) {
  if (const auto* text = merge.get_ptr<const std::string*>(); text != nullptr) {
    const std::string_view view = *text;
    const size_t space = view.find(' ');
    if (space == std::string_view::npos) return std::nullopt;
    return std::pair{view.substr(0, space), view.substr(space + 1)};
  }
  if (!merge.is_array() || merge.size() != 2) return std::nullopt;
  const auto* left = merge[0].get_ptr<const std::string*>();
  const auto* right = merge[1].get_ptr<const std::string*>();
  if (left == nullptr || right == nullptr) return std::nullopt;
  return std::pair<std::string_view, std::string_view>{*left, *right};
}

Status CheckNoMergeTwice(std::span<const MergeRule> merges) {
  std::vector<std::pair<TokenId, TokenId>> pairs;
  pairs.reserve(merges.size());
  for (const MergeRule& merge : merges) pairs.emplace_back(merge.left, merge.right);
  std::sort(pairs.begin(), pairs.end());
  const auto it = std::adjacent_find(pairs.begin(), pairs.end());
  if (it == pairs.end()) return OkStatus();
  return InvalidArgument("tokenizer.json: model.merges: tokens " + std::to_string(it->first) +
                         " and " + std::to_string(it->second) + " are merged twice");
}

Result<std::vector<MergeRule>> ReadMerges(const json& model, const Vocab& vocab) {
  const json* list = Find(model, "merges");
  if (list == nullptr || !list->is_array()) {
    return InvalidArgument("tokenizer.json: model.merges is missing or not a list");
  }
  std::vector<MergeRule> merges;
  merges.reserve(list->size());
  std::string joined;
  for (const json& entry : *list) {
    const std::string where = "tokenizer.json: model.merges " + std::to_string(merges.size());
    const auto pair = SplitMerge(entry);
    if (!pair) return InvalidArgument(where + ": expected \"A B\" or [\"A\", \"B\"]");
    joined.assign(pair->first).append(pair->second);
    const std::optional<TokenId> left = vocab.Find(pair->first);
    const std::optional<TokenId> right = vocab.Find(pair->second);
    const std::optional<TokenId> result = vocab.Find(joined);
    if (!left || !right || !result) {
      return InvalidArgument(where + ": " + Quote(pair->first) + ", " + Quote(pair->second) +
                             " or their concatenation is not in model.vocab");
    }
    merges.push_back({*left, *right, *result});
  }
  FATHOM_RETURN_IF_ERROR(CheckNoMergeTwice(merges));
  return merges;
}

// Fills what every token stands for and which tokens the single bytes are.
Status ReadBytes(const Vocab& vocab, TokenizerData& data) {
  const ByteAlphabet alphabet;
  size_t num_ids = vocab.size();
  for (const AddedToken& token : data.added_tokens) {
    num_ids = std::max(num_ids, static_cast<size_t>(token.id) + 1);
  }
  data.token_bytes.resize(num_ids);
  for (const AddedToken& token : data.added_tokens) {
    data.token_bytes[static_cast<size_t>(token.id)] = token.content;
  }
  for (const auto& [symbols, id] : vocab.entries()) {
    std::string& bytes = data.token_bytes[static_cast<size_t>(id)];
    if (!bytes.empty()) continue;  // an added token: its content is plain text
    std::optional<std::string> decoded = alphabet.Bytes(symbols);
    if (!decoded || decoded->empty()) {
      return InvalidArgument("tokenizer.json: model.vocab: " + Quote(symbols) +
                             " is neither in the byte alphabet nor an added token");
    }
    bytes = *std::move(decoded);
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string symbol;
    AppendUtf8(alphabet.CodeOf(static_cast<uint8_t>(byte)), symbol);
    const std::optional<TokenId> id = vocab.Find(symbol);
    if (!id) {
      return InvalidArgument("tokenizer.json: model.vocab has no symbol for byte " +
                             std::to_string(byte) + " (" + Quote(symbol) + ")");
    }
    data.byte_ids[byte] = *id;
  }
  return OkStatus();
}

}  // namespace

Result<TokenizerData> ParseTokenizerJson(std::string_view text) {
  FATHOM_ASSIGN_OR_RETURN(const json root, ParseObject(text, "tokenizer.json"));
  FATHOM_RETURN_IF_ERROR(CheckPipeline(root));
  const json* model = Find(root, "model");
  FATHOM_RETURN_IF_ERROR(CheckModelOptions(model));
  FATHOM_ASSIGN_OR_RETURN(const Vocab vocab, ReadVocab(*model));
  TokenizerData data;
  FATHOM_ASSIGN_OR_RETURN(data.added_tokens, ReadAddedTokens(root, vocab));
  FATHOM_ASSIGN_OR_RETURN(data.merges, ReadMerges(*model, vocab));
  FATHOM_RETURN_IF_ERROR(ReadBytes(vocab, data));
  return data;
}

Result<TokenizerConfig> ParseTokenizerConfig(std::string_view text) {
  FATHOM_ASSIGN_OR_RETURN(const json root, ParseObject(text, "tokenizer_config.json"));
  TokenizerConfig config;
  const auto read_flag = [&root](const char* key) -> Result<bool> {
    const json* value = Find(root, key);
    if (value == nullptr) return false;
    const auto* flag = value->get_ptr<const bool*>();
    if (flag != nullptr) return *flag;
    return InvalidArgument(std::string("tokenizer_config.json: ") + key + " is not a boolean");
  };
  FATHOM_ASSIGN_OR_RETURN(config.add_bos_token, read_flag("add_bos_token"));
  FATHOM_ASSIGN_OR_RETURN(const bool add_eos_token, read_flag("add_eos_token"));
  if (add_eos_token) {
    return Unimplemented("tokenizer_config.json: add_eos_token is true, expected false");
  }
  // A text, or an added token written out.
  if (const json* bos = Find(root, "bos_token"); bos != nullptr) {
    const std::string* content =
        bos->is_string() ? bos->get_ptr<const std::string*>() : FindString(*bos, "content");
    if (content == nullptr) {
      return InvalidArgument("tokenizer_config.json: bos_token is neither a text nor a token");
    }
    config.bos_token = *content;
  }
  return config;
}

}  // namespace fathom
