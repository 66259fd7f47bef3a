#include "chat/json_parse.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace fathom {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// Length of the well-formed UTF-8 sequence (no overlong form, no surrogate) at `at`; 0 if there is
// none.
size_t Utf8Length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) -> unsigned char {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return IsContinuation(byte(1)) ? 2 : 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  size_t length = 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (byte(1) < low || byte(1) > high || !IsContinuation(byte(2))) return 0;
  return length == 3 || IsContinuation(byte(3)) ? length : 0;
}

void AppendUtf8(uint32_t code, std::string& out) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0 | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0 | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

// A repeated key keeps its first place and takes its last value. By sorting, not hashing: a client
// chooses the keys, and an object may have millions of them.
void MergeRepeatedKeys(JsonValue::Object& object) {
  if (object.size() < 2) return;
  std::vector<size_t> order(object.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const int compared = object[a].key.compare(object[b].key);
    return compared != 0 ? compared < 0 : a < b;
  });
  std::vector<bool> dropped(object.size(), false);
  bool any_dropped = false;
  size_t first = 0;  // of the run of equal keys
  for (size_t i = 1; i < order.size(); ++i) {
    if (object[order[i]].key != object[order[first]].key) {
      first = i;
      continue;
    }
    object[order[first]].value = std::move(object[order[i]].value);
    dropped[order[i]] = true;
    any_dropped = true;
  }
  if (!any_dropped) return;
  JsonValue::Object kept;
  for (size_t i = 0; i < object.size(); ++i) {
    if (!dropped[i]) kept.push_back(std::move(object[i]));
  }
  object = std::move(kept);
}

class Parser {
 public:
  Parser(std::string_view text, const JsonParseOptions& options) : text_(text), options_(options) {}

  Result<JsonValue> ParseDocument() {
    JsonValue value;
    FATHOM_RETURN_IF_ERROR(ParseValue(0, value));
    SkipSpace();
    if (at_ != text_.size()) return Error("unexpected text after the value");
    return value;
  }

 private:
  Status Error(std::string_view what) const {
    return InvalidArgument("invalid JSON at byte " + std::to_string(at_) + ": " +
                           std::string(what));
  }

  void SkipSpace() { at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size()); }
  [[nodiscard]] char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(std::string_view token) {
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  Status ParseValue(int depth, JsonValue& out) {
    SkipSpace();
    if (++num_values_ > options_.max_values) return Error("too many values");
    switch (Peek()) {
      case '{':
        return ParseObject(depth, out);
      case '[':
        return ParseArray(depth, out);
      case '"': {
        std::string text;
        FATHOM_RETURN_IF_ERROR(ParseString(text));
        out = JsonValue::String(std::move(text));
        return OkStatus();
      }
      default:
        return ParseScalar(out);
    }
  }

  Status ParseScalar(JsonValue& out) {
    if (Take("null")) {
      out = JsonValue();
    } else if (Take("true")) {
      out = JsonValue::Bool(true);
    } else if (Take("false")) {
      out = JsonValue::Bool(false);
    } else if (options_.allow_non_finite && Take("NaN")) {
      out = JsonValue::NumberFromText("NaN");
    } else if (options_.allow_non_finite && Take("Infinity")) {
      out = JsonValue::NumberFromText("Infinity");
    } else if (options_.allow_non_finite && Take("-Infinity")) {
      out = JsonValue::NumberFromText("-Infinity");
    } else {
      return ParseNumber(out);
    }
    return OkStatus();
  }

  // Position after the digits at `from`; `from` itself if there are none.
  [[nodiscard]] size_t SkipDigits(size_t from) const {
    return std::min(text_.find_first_not_of("0123456789", from), text_.size());
  }

  Status ParseNumber(JsonValue& out) {
    size_t end = at_ + (Peek() == '-' ? 1 : 0);
    const size_t whole_end = SkipDigits(end);
    if (whole_end == end) return Error("expected a value");
    // A leading zero stands alone: "01" ends after the zero and the caller rejects the rest.
    end = text_[end] == '0' ? end + 1 : whole_end;
    bool is_integer = true;
    if (end < text_.size() && text_[end] == '.') {
      const size_t fraction_end = SkipDigits(end + 1);
      if (fraction_end == end + 1) return Error("digits must follow the decimal point");
      end = fraction_end;
      is_integer = false;
    }
    if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      size_t digits = end + 1;
      if (digits < text_.size() && (text_[digits] == '+' || text_[digits] == '-')) ++digits;
      const size_t exponent_end = SkipDigits(digits);
      if (exponent_end == digits) return Error("digits must follow the exponent sign");
      end = exponent_end;
      is_integer = false;
    }
    JsonValue number = JsonValue::NumberFromText(std::string(text_.substr(at_, end - at_)));
    if (!is_integer && !options_.allow_non_finite && !number.AsDouble()) {
      return Error("number out of range");
    }
    at_ = end;
    out = std::move(number);
    return OkStatus();
  }

  Status ParseString(std::string& out) {
    ++at_;  // opening quote
    size_t run = at_;
    while (at_ < text_.size()) {
      const unsigned char c = static_cast<unsigned char>(text_[at_]);
      if (c == '"' || c == '\\') {
        out.append(text_, run, at_ - run);
        ++at_;
        if (c == '"') return OkStatus();
        FATHOM_RETURN_IF_ERROR(ParseEscape(out));
        run = at_;
      } else if (c < 0x20) {
        return Error("control character in a string");
      } else {
        const size_t length = Utf8Length(text_, at_);
        if (length == 0) return Error("invalid UTF-8");
        at_ += length;
      }
    }
    return Error("string without end");
  }

  // After the backslash.
  Status ParseEscape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    const size_t known = at_ < text_.size() ? kNames.find(text_[at_]) : kNone;
    if (known != kNone) {
      ++at_;
      out += kValues[known];
      return OkStatus();
    }
    uint32_t code = 0;
    if (!Take("u") || !TakeHex4(code)) return Error("invalid escape");
    if (code >= 0xD800 && code <= 0xDFFF) {
      uint32_t low = 0;
      if (code > 0xDBFF || !Take("\\u") || !TakeHex4(low) || low < 0xDC00 || low > 0xDFFF) {
        return Error("escape makes a lone surrogate");
      }
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    AppendUtf8(code, out);
    return OkStatus();
  }

  bool TakeHex4(uint32_t& code) {
    if (text_.size() - at_ < 4) return false;
    code = 0;
    for (size_t i = 0; i < 4; ++i) {
      const char c = text_[at_ + i];
      uint32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = static_cast<uint32_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        digit = static_cast<uint32_t>(c - 'a' + 10);
      } else if (c >= 'A' && c <= 'F') {
        digit = static_cast<uint32_t>(c - 'A' + 10);
      } else {
        return false;
      }
      code = code * 16 + digit;
    }
    at_ += 4;
    return true;
  }

  Status ParseArray(int depth, JsonValue& out) {
    if (depth >= options_.max_depth) return Error("nested too deeply");
    ++at_;
    JsonValue::Array array;
    SkipSpace();
    if (!Take("]")) {
      while (true) {
        FATHOM_RETURN_IF_ERROR(ParseValue(depth + 1, array.emplace_back()));
        SkipSpace();
        if (Take("]")) break;
        if (!Take(",")) return Error("expected ',' or ']'");
      }
    }
    out = JsonValue::FromArray(std::move(array));
    return OkStatus();
  }

  Status ParseObject(int depth, JsonValue& out) {
    if (depth >= options_.max_depth) return Error("nested too deeply");
    ++at_;
    JsonValue::Object object;
    SkipSpace();
    if (!Take("}")) {
      while (true) {
        SkipSpace();
        if (Peek() != '"') return Error("expected a key in quotes");
        JsonValue::Member& member = object.emplace_back();
        FATHOM_RETURN_IF_ERROR(ParseString(member.key));
        SkipSpace();
        if (!Take(":")) return Error("expected ':'");
        FATHOM_RETURN_IF_ERROR(ParseValue(depth + 1, member.value));
        SkipSpace();
        if (Take("}")) break;
        if (!Take(",")) return Error("expected ',' or '}'");
      }
    }
    MergeRepeatedKeys(object);
    out = JsonValue::FromObject(std::move(object));
    return OkStatus();
  }

  std::string_view text_;
  const JsonParseOptions& options_;
  size_t at_ = 0;
  size_t num_values_ = 0;
};

}  // namespace

Result<JsonValue> ParseJson(std::string_view text, const JsonParseOptions& options) {
  return Parser(text, options).ParseDocument();
}

}  // namespace fathom
