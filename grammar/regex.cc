#include "grammar/regex.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/utf8.h"

namespace fathom {

namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr int kMaxGroups = 200;  // nested; bounds the recursion
constexpr char32_t kEndOfPattern = 0xFFFFFFFF;

const CharSet& Digits() {
  static const CharSet set({{'0', '9'}});
  return set;
}
const CharSet& WordChars() {
  static const CharSet set({{'0', '9'}, {'A', 'Z'}, {'a', 'z'}, {'_', '_'}});
  return set;
}
const CharSet& Blanks() {
  static const CharSet set({{'\t', '\r'}, {' ', ' '}});
  return set;
}

class Parser {
 public:
  Parser(GrammarBuilder& builder, std::string_view pattern, RegexMatch match, TextStyle style)
      : builder_(builder), pattern_(pattern), match_(match), style_(style) {}

  Result<ExprId> Run() {
    if (pattern_.size() > kMaxPatternBytes) {
      return InvalidArgument("the regular expression is longer than " +
                             std::to_string(kMaxPatternBytes) + " bytes");
    }
    if (FindInvalidUtf8(pattern_) != std::string_view::npos) {
      return InvalidArgument("the regular expression is not valid UTF-8");
    }
    const ExprId expr = Alternatives(0);
    if (status_.ok() && at_ < pattern_.size()) Fail("unmatched ')'");
    if (!status_.ok()) return status_;
    return expr;
  }

 private:
  // The first problem counts. Reading goes on at the end of the pattern, where everything stops.
  void Fail(const std::string& what) {
    if (status_.ok()) {
      status_ = InvalidArgument("regular expression: " + what + " at byte " + std::to_string(at_));
    }
    at_ = pattern_.size();
  }
  void Refuse(const std::string& what) {
    if (status_.ok()) {
      status_ = Unimplemented("regular expression: " + what + " at byte " + std::to_string(at_) +
                              " cannot be enforced");
    }
    at_ = pattern_.size();
  }

  [[nodiscard]] bool Sees(std::string_view text) const {
    return pattern_.substr(at_).starts_with(text);
  }
  bool Take(std::string_view text) {
    if (!Sees(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t TakeChar() {
    if (at_ >= pattern_.size()) {
      Fail("unexpected end");
      return kEndOfPattern;
    }
    const Utf8Char c = DecodeValidUtf8(pattern_, at_);
    at_ += c.num_bytes;
    return c.code;
  }

  ExprId Alternatives(int depth) {
    std::vector<ExprId> branches;
    do {
      branches.push_back(Branch(depth));
    } while (Take("|"));
    return builder_.Choice(std::move(branches));
  }

  ExprId Branch(int depth) {
    const bool starts_anywhere = depth == 0 && match_ == RegexMatch::kFind;
    bool pinned_begin = false, pinned_end = false;
    while (depth == 0 && Take("^")) pinned_begin = true;
    std::vector<ExprId> parts;
    while (at_ < pattern_.size() && !Sees("|") && !(Sees(")"))) {
      if (Sees("^")) {
        Refuse("'^' that is not at the start");
      } else if (depth == 0 && (Sees("$|") || pattern_.substr(at_) == "$")) {
        ++at_;
        pinned_end = true;
      } else if (Sees("$")) {
        Refuse("'$' that is not at the end");
      } else {
        parts.push_back(Quantified(Atom(depth)));
      }
    }
    if (depth == 0 && Sees(")")) Fail("unmatched ')'");
    if (starts_anywhere && !pinned_begin) parts.insert(parts.begin(), Anything());
    if (starts_anywhere && !pinned_end) parts.push_back(Anything());
    return builder_.Sequence(std::move(parts));
  }

  ExprId Anything() { return builder_.Repeat(OneOfSet(CharSet::All()), 0, -1); }

  ExprId Quantified(ExprId atom) {
    for (bool is_first = true;; is_first = false) {
      int64_t min = 0, max = -1;
      if (Take("*")) {
      } else if (Take("+")) {
        min = 1;
      } else if (Take("?")) {
        max = 1;
      } else if (!TakeCounts(min, max)) {
        return atom;
      }
      if (!is_first) {
        Fail("nothing to repeat");
        return atom;
      }
      if (Sees("+")) Refuse("a possessive quantifier");
      Take("?");  // lazy: another way to the same texts
      atom = builder_.Repeat(atom, min, max);
    }
  }

  // {m}, {m,} or {m,n}; anything else is a literal brace.
  bool TakeCounts(int64_t& min, int64_t& max) {
    const size_t begin = at_;
    std::optional<int64_t> low, high;
    bool has_comma = false;
    if (Take("{") && (low = TakeNumber()).has_value()) {
      has_comma = Take(",");
      if (has_comma) high = TakeNumber();
      if (Take("}")) {
        min = *low;
        max = has_comma ? high.value_or(-1) : *low;
        if (max >= 0 && max < min) Fail("a repeat whose maximum is below its minimum");
        return true;
      }
    }
    if (status_.ok()) at_ = begin;
    return false;
  }

  std::optional<int64_t> TakeNumber() {
    std::optional<int64_t> value;
    while (at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9') {
      value = value.value_or(0) * 10 + (pattern_[at_++] - '0');
      if (*value > GrammarBuilder::kMaxRepeat) {
        Fail("a repeat count above " + std::to_string(GrammarBuilder::kMaxRepeat));
        return value;
      }
    }
    return value;
  }

  ExprId Atom(int depth) {
    if (Take("(")) return Group(depth);
    if (Take("[")) return OneOfSet(Class());
    if (Take(".")) return OneOfSet(CharSet({{'\n', '\n'}, {'\r', '\r'}}).Complement());
    if (Take("\\")) return OneOfSet(Escape(false));
    if (Sees("*") || Sees("+") || Sees("?")) {
      Fail("nothing to repeat");
      return builder_.Empty();
    }
    const char32_t c = TakeChar();
    return OneOfSet(CharSet({{c, c}}));
  }

  ExprId Group(int depth) {
    if (depth >= kMaxGroups) {
      Fail("more than " + std::to_string(kMaxGroups) + " nested groups");
      return builder_.Empty();
    }
    if (Take("?")) {
      if (Sees("=") || Sees("!")) Refuse("a look-ahead");
      if (Sees("<=") || Sees("<!")) Refuse("a look-behind");
      if (Take("<") || Take("P<")) {
        while (at_ < pattern_.size() && pattern_[at_] != '>') ++at_;
        if (!Take(">")) Fail("a group name without '>'");
      } else if (!Take(":")) {
        Refuse("a group of this kind");
      }
    }
    const ExprId inner = Alternatives(depth + 1);
    if (!Take(")")) Fail("a group without ')'");
    return inner;
  }

  CharSet Class() {
    const bool is_negated = Take("^");
    std::vector<CharSet::Range> ranges;
    CharSet sets;
    bool is_first = true;
    while (is_first || !Sees("]")) {
      if (at_ >= pattern_.size()) {
        Fail("a class without ']'");
        return {};
      }
      // An empty class matches nothing, as in ECMAScript, not a bracket.
      if (is_first && Sees("]")) break;
      is_first = false;
      if (Sees("[:")) Refuse("a POSIX class");
      const CharSet low = ClassChar();
      const bool is_single = low.ranges().size() == 1 && low.ranges()[0].lo == low.ranges()[0].hi;
      if (is_single && Sees("-") && !Sees("-]")) {
        ++at_;
        const CharSet high = ClassChar();
        const bool is_range = high.ranges().size() == 1 &&
                              high.ranges()[0].lo == high.ranges()[0].hi &&
                              high.ranges()[0].lo >= low.ranges()[0].lo;
        if (!is_range) {
          Fail("a range that is none");
          return {};
        }
        ranges.push_back({low.ranges()[0].lo, high.ranges()[0].lo});
      } else {
        ranges.insert(ranges.end(), low.ranges().begin(), low.ranges().end());
      }
    }
    Take("]");
    const CharSet set(std::move(ranges));
    return is_negated ? set.Complement() : set;
  }

  CharSet ClassChar() {
    if (Take("\\")) return Escape(true);
    const char32_t c = TakeChar();
    return CharSet({{c, c}});
  }

  // What follows a backslash.
  CharSet Escape(bool in_class) {
    const size_t begin = at_;
    const char32_t c = TakeChar();
    const auto one = [](char32_t code) { return CharSet({{code, code}}); };
    switch (c) {
      case 'd':
        return Digits();
      case 'D':
        return Digits().Complement();
      case 'w':
        return WordChars();
      case 'W':
        return WordChars().Complement();
      case 's':
        return Blanks();
      case 'S':
        return Blanks().Complement();
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case '0':
        return one(0);
      case 'x':
        return Take("{") ? one(HexUpTo('}')) : one(Hex(2));
      case 'u':
        return Take("{") ? one(HexUpTo('}')) : one(Hex(4));
      case 'b':
        if (in_class) return one('\b');
        [[fallthrough]];
      case 'B':
      case 'A':
      case 'z':
      case 'Z':
        at_ = begin;
        Refuse("a word boundary or anchor");
        return {};
      case 'p':
      case 'P':
        at_ = begin;
        Refuse("a Unicode property");
        return {};
      case 'k':
        at_ = begin;
        Refuse("a back reference");
        return {};
      default:
        break;
    }
    if (c >= '1' && c <= '9') {
      at_ = begin;
      Refuse("a back reference");
      return {};
    }
    if (c < 0x80 && WordChars().Has(c) && c != '_') {
      at_ = begin;
      Fail("an unknown escape");
      return {};
    }
    return one(c);
  }

  char32_t Hex(int num_digits) {
    char32_t value = 0;
    for (int i = 0; i < num_digits; ++i) {
      const int digit = at_ < pattern_.size() ? HexDigit(pattern_[at_]) : -1;
      if (digit < 0) {
        Fail("a hexadecimal digit was expected");
        return 0;
      }
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  char32_t HexUpTo(char close) {
    char32_t value = 0;
    size_t num_digits = 0;
    while (at_ < pattern_.size() && HexDigit(pattern_[at_]) >= 0 && num_digits < 6) {
      value = value * 16 + static_cast<char32_t>(HexDigit(pattern_[at_]));
      ++num_digits;
      ++at_;
    }
    if (num_digits == 0 || !Take(std::string_view(&close, 1))) Fail("a bad code point");
    return value;
  }

  static int HexDigit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  }

  // The same set is the same expression, so that patterns with many classes stay small.
  ExprId OneOfSet(const CharSet& set) {
    if (!status_.ok()) return builder_.Empty();
    std::vector<char32_t> key;
    for (const CharSet::Range& range : set.ranges()) {
      key.push_back(range.lo);
      key.push_back(range.hi);
    }
    const auto [found, is_new] = known_.try_emplace(std::move(key), 0);
    if (is_new) found->second = OneOf(builder_, set, style_);
    return found->second;
  }

  GrammarBuilder& builder_;
  std::string_view pattern_;
  RegexMatch match_;
  TextStyle style_;
  size_t at_ = 0;
  Status status_;
  std::map<std::vector<char32_t>, ExprId> known_;
};

}  // namespace

Result<ExprId> RegexToExpr(GrammarBuilder& builder, std::string_view pattern, RegexMatch match,
                           TextStyle style) {
  return Parser(builder, pattern, match, style).Run();
}

Result<Grammar> RegexToGrammar(std::string_view pattern) {
  GrammarBuilder builder;
  const RuleId root = builder.NewRule("regex");
  FATHOM_ASSIGN_OR_RETURN(const ExprId body,
                          RegexToExpr(builder, pattern, RegexMatch::kWhole, TextStyle::kRaw));
  builder.SetBody(root, body);
  return builder.Build(root);
}

}  // namespace fathom
