#include "grammar/ebnf.h"

#include <algorithm>
#include <map>
#include <utility>

#include "grammar/char_set.h"
#include "tokenizer/utf8.h"

namespace fathom {

namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 20;
constexpr int kMaxGroups = 200;  // nested; bounds the recursion

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Grammar> Run() {
    if (text_.size() > kMaxTextBytes) {
      return InvalidArgument("the grammar is longer than " + std::to_string(kMaxTextBytes) +
                             " bytes");
    }
    if (FindInvalidUtf8(text_) != std::string_view::npos) {
      return InvalidArgument("the grammar is not valid UTF-8");
    }
    for (SkipBlanks(); at_ < text_.size(); SkipBlanks()) {
      const std::string name = TakeName();
      if (name.empty()) Fail("a rule name was expected");
      SkipBlanks();
      if (!Take("::=")) Fail("'::=' was expected");
      if (!status_.ok()) return status_;
      const RuleId rule = RuleOf(name);
      if (is_defined_[static_cast<size_t>(rule)]) Fail("rule '" + name + "' is defined twice");
      is_defined_[static_cast<size_t>(rule)] = true;
      builder_.SetBody(rule, Alternatives(0));
      if (!status_.ok()) return status_;
    }
    const auto root = rules_.find("root");
    if (root == rules_.end() || !is_defined_[static_cast<size_t>(root->second)]) {
      return InvalidArgument("the grammar has no rule 'root'");
    }
    return builder_.Build(root->second);
  }

 private:
  void Fail(const std::string& what) {
    if (status_.ok()) {
      const auto line =
          std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n') + 1;
      status_ = InvalidArgument("grammar, line " + std::to_string(line) + ": " + what);
    }
    at_ = text_.size();
  }

  [[nodiscard]] char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void SkipBlanks() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) {
        ++at_;
      } else {
        return;
      }
    }
  }
  static bool IsNameChar(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  }
  std::string TakeName() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsNameChar(text_[at_])) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }
  // A name here belongs to the rule after this one.
  bool AtNextRule() {
    const size_t begin = at_;
    const bool has_name = !TakeName().empty();
    SkipBlanks();
    const bool is_rule = has_name && text_.substr(at_).starts_with("::=");
    at_ = begin;
    return is_rule;
  }

  RuleId RuleOf(const std::string& name) {
    const auto known = rules_.find(name);
    if (known != rules_.end()) return known->second;
    const RuleId rule = builder_.NewRule(name);
    if (builder_.failed()) {
      Fail("too many rules");
      return 0;
    }
    rules_[name] = rule;
    is_defined_.resize(static_cast<size_t>(rule) + 1, false);
    return rule;
  }

  ExprId Alternatives(int depth) {
    std::vector<ExprId> branches;
    do {
      branches.push_back(Branch(depth));
    } while (Take("|"));
    return builder_.Choice(std::move(branches));
  }

  ExprId Branch(int depth) {
    std::vector<ExprId> parts;
    for (SkipBlanks(); at_ < text_.size() && Peek() != '|' && Peek() != ')'; SkipBlanks()) {
      if (IsNameChar(Peek()) && AtNextRule()) {
        if (depth > 0) Fail("a group without ')'");
        break;
      }
      parts.push_back(Quantified(Atom(depth)));
    }
    if (depth == 0 && Peek() == ')') Fail("unmatched ')'");
    return builder_.Sequence(std::move(parts));
  }

  ExprId Atom(int depth) {
    if (Take("\"")) return Literal();
    if (Take("[")) return OneOf(builder_, Class(), TextStyle::kRaw);
    if (Take(".")) return OneOf(builder_, CharSet::All(), TextStyle::kRaw);
    if (Take("(")) {
      if (depth >= kMaxGroups) {
        Fail("more than " + std::to_string(kMaxGroups) + " nested groups");
        return builder_.Empty();
      }
      const ExprId inner = Alternatives(depth + 1);
      if (!Take(")")) Fail("a group without ')'");
      return inner;
    }
    if (!IsNameChar(Peek())) {
      Fail(std::string("'") + Peek() + "' was not expected");
      return builder_.Empty();
    }
    return builder_.Use(RuleOf(TakeName()));
  }

  ExprId Quantified(ExprId atom) {
    SkipBlanks();
    if (Take("*")) return builder_.Repeat(atom, 0, -1);
    if (Take("+")) return builder_.Repeat(atom, 1, -1);
    if (Take("?")) return builder_.Repeat(atom, 0, 1);
    if (!Take("{")) return atom;
    SkipBlanks();
    int64_t max = -1;
    const int64_t min = TakeNumber();
    SkipBlanks();
    if (!Take(",")) {
      max = min;
    } else {
      SkipBlanks();
      if (Peek() != '}') max = TakeNumber();
      SkipBlanks();
    }
    if (!Take("}")) Fail("a repeat without '}'");
    if (max >= 0 && max < min) Fail("a repeat whose maximum is below its minimum");
    return status_.ok() ? builder_.Repeat(atom, min, max) : atom;
  }

  int64_t TakeNumber() {
    if (Peek() < '0' || Peek() > '9') Fail("a repeat count was expected");
    int64_t value = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      value = value * 10 + (text_[at_++] - '0');
      if (value > GrammarBuilder::kMaxRepeat) {
        Fail("a repeat count above " + std::to_string(GrammarBuilder::kMaxRepeat));
      }
    }
    return value;
  }

  ExprId Literal() {
    std::string bytes;
    while (status_.ok() && Peek() != '"') {
      if (at_ >= text_.size()) {
        Fail("a literal without closing quote");
        break;
      }
      AppendUtf8(TakeChar(), bytes);
    }
    Take("\"");
    return builder_.Literal(bytes);
  }

  CharSet Class() {
    const bool is_negated = Take("^");
    std::vector<CharSet::Range> ranges;
    while (Peek() != ']') {
      if (at_ >= text_.size()) {
        Fail("a class without ']'");
        return {};
      }
      const char32_t low = TakeChar();
      char32_t high = low;
      if (Peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = TakeChar();
      }
      if (high < low) Fail("a range whose end is before its start");
      ranges.push_back({low, high});
    }
    Take("]");
    const CharSet set(std::move(ranges));
    return is_negated ? set.Complement() : set;
  }

  // One character of a literal or class, escapes resolved. The text is valid UTF-8.
  char32_t TakeChar() {
    if (at_ >= text_.size()) {
      Fail("unexpected end");
      return 0;
    }
    const Utf8Char c = DecodeValidUtf8(text_, at_);
    at_ += c.num_bytes;
    if (c.code != '\\') return c.code;
    const char letter = Peek();
    if (at_ < text_.size()) ++at_;
    switch (letter) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'U':
        return Hex(8);
      case '"':
      case '\'':
      case '\\':
      case '[':
      case ']':
      case '^':
      case '-':
      case '/':
        return static_cast<char32_t>(letter);
      default:
        Fail("an unknown escape");
        return 0;
    }
  }

  char32_t Hex(int num_digits) {
    uint64_t value = 0;
    for (int i = 0; i < num_digits; ++i, ++at_) {
      const char c = Peek();
      int digit = -1;
      if (c >= '0' && c <= '9') digit = c - '0';
      if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
      if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
      if (digit < 0) {
        Fail("a hexadecimal digit was expected");
        return 0;
      }
      value = value * 16 + static_cast<uint64_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      Fail("an escape that is no character");
      return 0;
    }
    return static_cast<char32_t>(value);
  }

  std::string_view text_;
  size_t at_ = 0;
  Status status_;
  GrammarBuilder builder_;
  std::map<std::string, RuleId> rules_;
  std::vector<bool> is_defined_;
};

}  // namespace

Result<Grammar> EbnfToGrammar(std::string_view text) { return Parser(text).Run(); }

Result<Grammar> ChoiceGrammar(const std::vector<std::string>& choices) {
  if (choices.empty()) return InvalidArgument("a choice needs at least one text");
  for (const std::string& choice : choices) {
    if (FindInvalidUtf8(choice) != std::string_view::npos) {
      return InvalidArgument("a choice is not valid UTF-8");
    }
  }
  GrammarBuilder builder;
  const RuleId root = builder.NewRule("choice");
  builder.SetBody(root, builder.Automaton(OneOfStrings(choices)));
  return builder.Build(root);
}

}  // namespace fathom
