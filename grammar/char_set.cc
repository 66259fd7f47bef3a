#include "grammar/char_set.h"

#include <algorithm>
#include <utility>

#include "tokenizer/utf8.h"

namespace fathom {

namespace {

constexpr char32_t kMaxCode = 0x10FFFF;
constexpr char32_t kBeforeSurrogates = 0xD7FF, kAfterSurrogates = 0xE000;

// Appends one sequence of byte ranges for each part of [lo, hi] whose encodings are exactly such a
// sequence. The parts end where a byte's continuation bits begin anew, so there are few.
void AppendUtf8Ranges(GrammarBuilder& builder, char32_t lo, char32_t hi,
                      std::vector<ExprId>& parts) {
  for (const char32_t last_of_length : {char32_t{0x7F}, char32_t{0x7FF}, char32_t{0xFFFF}}) {
    if (lo <= last_of_length && hi > last_of_length) {
      AppendUtf8Ranges(builder, lo, last_of_length, parts);
      return AppendUtf8Ranges(builder, last_of_length + 1, hi, parts);
    }
  }
  for (int bits = 6; bits <= 18; bits += 6) {
    const char32_t mask = (char32_t{1} << bits) - 1;
    if (lo < 0x80 || (lo & ~mask) == (hi & ~mask)) continue;
    if ((lo & mask) != 0) {
      AppendUtf8Ranges(builder, lo, lo | mask, parts);
      return AppendUtf8Ranges(builder, (lo | mask) + 1, hi, parts);
    }
    if ((hi & mask) != mask) {
      AppendUtf8Ranges(builder, lo, (hi & ~mask) - 1, parts);
      return AppendUtf8Ranges(builder, hi & ~mask, hi, parts);
    }
  }
  std::string first, last;
  AppendUtf8(lo, first);
  AppendUtf8(hi, last);
  std::vector<ExprId> bytes;
  for (size_t i = 0; i < first.size(); ++i) {
    bytes.push_back(builder.Byte(static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])));
  }
  parts.push_back(builder.Sequence(std::move(bytes)));
}

// '"', '\' and the controls.
const CharSet& JsonEscapedChars() {
  static const CharSet set({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return set;
}

// \u00XX of a control, either case.
ExprId HexEscape(GrammarBuilder& builder, char32_t c) {
  const char* digits = "0123456789abcdef";
  const char low = digits[c & 15];
  std::string prefix = "\\u00";
  prefix += digits[c >> 4];
  const ExprId lower = builder.Byte(low, low);
  if (low <= '9') return builder.Sequence({builder.Literal(prefix), lower});
  const int upper = low - 'a' + 'A';
  return builder.Sequence(
      {builder.Literal(prefix), builder.Choice({lower, builder.Byte(upper, upper)})});
}

char ShortEscape(char32_t c) {
  switch (c) {
    case '"':
    case '\\':
      return static_cast<char>(c);
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return 0;
  }
}

}  // namespace

CharSet::CharSet(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.lo < b.lo; });
  const auto append = [this](char32_t lo, char32_t hi) {
    if (lo > hi) return;
    if (!ranges_.empty() && lo <= ranges_.back().hi + 1) {
      ranges_.back().hi = std::max(ranges_.back().hi, hi);
    } else {
      ranges_.push_back({lo, hi});
    }
  };
  for (const Range& range : ranges) {
    append(range.lo, std::min(range.hi, kBeforeSurrogates));
    append(std::max(range.lo, kAfterSurrogates), std::min(range.hi, kMaxCode));
  }
}

CharSet CharSet::All() { return CharSet({{0, kMaxCode}}); }

bool CharSet::Has(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](Range r) { return r.lo <= c && c <= r.hi; });
}

CharSet CharSet::Complement() const {
  std::vector<Range> out;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.lo > next) out.push_back({next, range.lo - 1});
    next = range.hi + 1;
  }
  if (next <= kMaxCode) out.push_back({next, kMaxCode});
  return CharSet(std::move(out));
}

CharSet CharSet::Union(const CharSet& other) const {
  std::vector<Range> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(all));
}

CharSet CharSet::Minus(const CharSet& other) const {
  return Complement().Union(other).Complement();
}

ExprId OneOf(GrammarBuilder& builder, const CharSet& set, TextStyle style) {
  std::vector<ExprId> parts;
  CharSet plain = set;
  if (style == TextStyle::kToolValue) plain = set.Minus(CharSet({{0xFF5C, 0xFF5C}}));
  if (style == TextStyle::kJsonString) {
    plain = set.Minus(JsonEscapedChars());
    for (const CharSet::Range& range : JsonEscapedChars().ranges()) {
      for (char32_t c = range.lo; c <= range.hi; ++c) {
        if (!set.Has(c)) continue;
        if (const char letter = ShortEscape(c); letter != 0) {
          parts.push_back(builder.Literal(std::string("\\") + letter));
        }
        if (c < 0x20) parts.push_back(HexEscape(builder, c));
      }
    }
  }
  for (const CharSet::Range& range : plain.ranges()) {
    AppendUtf8Ranges(builder, range.lo, range.hi, parts);
  }
  return builder.Choice(std::move(parts));
}

std::string JsonEscaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<char32_t>(static_cast<uint8_t>(c));
    if (const char letter = ShortEscape(code); letter != 0) {
      out += {'\\', letter};
    } else if (code < 0x20) {
      const char* digits = "0123456789abcdef";
      out += "\\u00";
      out += {digits[code >> 4], digits[code & 15]};
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace fathom
