#include "grammar/json_grammar.h"

#include <algorithm>
#include <utility>

#include "grammar/char_set.h"

namespace fathom {

namespace {

// 40 digits and a two-digit exponent stay far below 1e308.
constexpr int kMaxDigits = 40;
constexpr int kMaxIndent = 64;

}  // namespace

ExprId JsonParts::ByteOf(std::string_view bytes) {
  std::vector<ExprId> parts;
  for (const char c : bytes) {
    parts.push_back(builder_.Byte(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
  }
  return builder_.Choice(std::move(parts));
}

ExprId JsonParts::Digits(int64_t min, int64_t max) {
  if (min == 1 && max == 1) return builder_.Byte('0', '9');
  return builder_.Repeat(builder_.Byte('0', '9'), min, max);
}

ExprId JsonParts::Blanks() {
  if (!blanks_.has_value()) {
    const ExprId line_break = builder_.Sequence({builder_.Optional(ByteOf("\r")), ByteOf("\n"),
                                                 builder_.Repeat(ByteOf(" \t"), 0, kMaxIndent)});
    blanks_ = builder_.NewRuleOf("blanks", builder_.Sequence({builder_.Repeat(ByteOf(" \t"), 0, 8),
                                                              builder_.Repeat(line_break, 0, 2)}));
  }
  return *blanks_;
}

ExprId JsonParts::StringChar() {
  if (!string_char_.has_value()) {
    const CharSet plain = CharSet({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}).Complement();
    const ExprId hex = builder_.Choice(
        {builder_.Byte('0', '9'), builder_.Byte('a', 'f'), builder_.Byte('A', 'F')});
    const ExprId d = ByteOf("dD");
    const ExprId not_d = builder_.Choice({builder_.Byte('0', '9'), builder_.Byte('a', 'c'),
                                          builder_.Byte('A', 'C'), ByteOf("efEF")});
    const ExprId begin = builder_.Literal("\\u");
    string_char_ = builder_.NewRuleOf(
        "string character",
        builder_.Choice({OneOf(builder_, plain, TextStyle::kRaw),
                         builder_.Sequence({ByteOf("\\"), ByteOf("\"\\/bfnrt")}),
                         builder_.Sequence({begin, not_d, hex, hex, hex}),
                         builder_.Sequence({begin, d, builder_.Byte('0', '7'), hex, hex}),
                         // A code point above U+FFFF: both halves.
                         builder_.Sequence({begin, d, ByteOf("89abAB"), hex, hex, begin, d,
                                            ByteOf("cdefCDEF"), hex, hex})}));
  }
  return *string_char_;
}

ExprId JsonParts::String() {
  if (!string_.has_value()) {
    string_ = builder_.NewRuleOf(
        "string",
        builder_.Sequence({ByteOf("\""), builder_.Repeat(StringChar(), 0, -1), ByteOf("\"")}));
  }
  return *string_;
}

ExprId JsonParts::Fraction() { return builder_.Sequence({ByteOf("."), Digits(1, kMaxDigits)}); }

ExprId JsonParts::Integer() {
  if (!integer_.has_value()) {
    const ExprId magnitude = builder_.Choice(
        {ByteOf("0"), builder_.Sequence({builder_.Byte('1', '9'), Digits(0, kMaxDigits - 1)})});
    integer_ = builder_.NewRuleOf("integer",
                                  builder_.Sequence({builder_.Optional(ByteOf("-")), magnitude}));
  }
  return *integer_;
}

ExprId JsonParts::Number() {
  if (!number_.has_value()) {
    const ExprId exponent =
        builder_.Sequence({ByteOf("eE"), builder_.Optional(ByteOf("+-")), Digits(1, 2)});
    number_ = builder_.NewRuleOf(
        "number",
        builder_.Sequence({Integer(), builder_.Optional(Fraction()), builder_.Optional(exponent)}));
  }
  return *number_;
}

ExprId JsonParts::Value() {
  if (!value_.has_value()) {
    const RuleId rule = builder_.NewRule("value");
    value_ = builder_.Use(rule);  // before the parts that contain it
    builder_.SetBody(
        rule, builder_.Choice({Object(), Array(), String(), Number(), builder_.Literal("true"),
                               builder_.Literal("false"), builder_.Literal("null")}));
  }
  return *value_;
}

ExprId JsonParts::Object() {
  if (!object_.has_value()) {
    const RuleId rule = builder_.NewRule("object");
    object_ = builder_.Use(rule);
    builder_.SetBody(rule, ObjectOf({}, Member(String(), Value())));
  }
  return *object_;
}

ExprId JsonParts::Array() {
  if (!array_.has_value()) {
    const RuleId rule = builder_.NewRule("array");
    array_ = builder_.Use(rule);
    builder_.SetBody(rule, ArrayOf({}, Value(), 0, -1));
  }
  return *array_;
}

// Digits of a number from `min` to `max`, without leading zeros. The recursion is over digits.
ExprId JsonParts::DigitsBetween(uint64_t min, std::optional<uint64_t> max) {
  const std::string low = std::to_string(min);
  const auto same_length = [this](const std::string& from, const std::string& to) {
    // At each place: the digit of a bound and then the rest under that bound, or one between.
    std::vector<ExprId> under_low(from.size() + 1), over_high(from.size() + 1);
    under_low.back() = over_high.back() = builder_.Empty();
    const auto between = [this](int lo, int hi, ExprId rest) {
      return lo > hi ? builder_.Never() : builder_.Sequence({builder_.Byte(lo, hi), rest});
    };
    for (size_t i = from.size(); i-- > 1;) {
      const ExprId any = Digits(static_cast<int64_t>(from.size() - i - 1),
                                static_cast<int64_t>(from.size() - i - 1));
      under_low[i] = builder_.Choice(
          {between(from[i], from[i], under_low[i + 1]), between(from[i] + 1, '9', any)});
      over_high[i] =
          builder_.Choice({between(to[i], to[i], over_high[i + 1]), between('0', to[i] - 1, any)});
    }
    size_t shared = 0;
    while (shared < from.size() && from[shared] == to[shared]) ++shared;
    if (shared == from.size()) return builder_.Literal(from);
    const auto rest = static_cast<int64_t>(from.size() - shared - 1);
    return builder_.Sequence(
        {builder_.Literal(from.substr(0, shared)),
         builder_.Choice({between(from[shared], from[shared], under_low[shared + 1]),
                          between(from[shared] + 1, to[shared] - 1, Digits(rest, rest)),
                          between(to[shared], to[shared], over_high[shared + 1])})});
  };
  std::vector<ExprId> parts;
  const std::string high = max.has_value() ? std::to_string(*max) : std::string();
  const size_t last_length = max.has_value() ? high.size() : low.size();
  for (size_t length = low.size(); length <= last_length; ++length) {
    const std::string from = length == low.size() ? low : "1" + std::string(length - 1, '0');
    const std::string to =
        max.has_value() && length == high.size() ? high : std::string(length, '9');
    parts.push_back(same_length(from, to));
  }
  if (!max.has_value()) {
    const auto more = static_cast<int64_t>(low.size());
    parts.push_back(builder_.Sequence({builder_.Byte('1', '9'), Digits(more, kMaxDigits - 1)}));
  }
  return builder_.Choice(std::move(parts));
}

namespace {

uint64_t AbsoluteOf(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

}  // namespace

ExprId JsonParts::IntegerBetween(std::optional<int64_t> min, std::optional<int64_t> max) {
  if (min.has_value() && max.has_value() && *min > *max) return builder_.Never();
  std::vector<ExprId> parts;
  if (!max.has_value() || *max >= 0) {
    const auto from = static_cast<uint64_t>(std::max<int64_t>(min.value_or(0), 0));
    parts.push_back(DigitsBetween(from, max.has_value()
                                            ? std::optional<uint64_t>(static_cast<uint64_t>(*max))
                                            : std::nullopt));
  }
  if (!min.has_value() || *min < 0) {
    const uint64_t from = AbsoluteOf(std::min<int64_t>(max.value_or(-1), -1));
    parts.push_back(builder_.Sequence(
        {ByteOf("-"),
         DigitsBetween(
             from, min.has_value() ? std::optional<uint64_t>(AbsoluteOf(*min)) : std::nullopt)}));
  }
  return builder_.Choice(std::move(parts));
}

// Numbers without sign: below `to` with any fraction, or the bounds themselves.
ExprId JsonParts::MagnitudesBetween(Magnitude from, std::optional<Magnitude> to) {
  const auto zeros = [this](int64_t min, int64_t max) {
    return builder_.Repeat(ByteOf("0"), min, max);
  };
  std::vector<ExprId> parts;
  const uint64_t first = from.value + (from.is_exclusive ? 1 : 0);
  if (!to.has_value() || first < to->value) {
    const ExprId whole = DigitsBetween(
        first, to.has_value() ? std::optional<uint64_t>(to->value - 1) : std::nullopt);
    parts.push_back(builder_.Sequence({whole, builder_.Optional(Fraction())}));
  }
  if (from.is_exclusive && (!to.has_value() || from.value < to->value)) {
    // Above the bound by its fraction only.
    parts.push_back(builder_.Sequence({builder_.Literal(std::to_string(from.value) + "."),
                                       zeros(0, kMaxDigits / 2), builder_.Byte('1', '9'),
                                       Digits(0, kMaxDigits / 2)}));
  }
  const bool has_end = to.has_value() && !to->is_exclusive && first <= to->value;
  if (has_end) {
    const ExprId point_zero = builder_.Sequence({ByteOf("."), zeros(1, kMaxDigits)});
    parts.push_back(builder_.Sequence(
        {builder_.Literal(std::to_string(to->value)), builder_.Optional(point_zero)}));
  }
  return builder_.Choice(std::move(parts));
}

ExprId JsonParts::NumberBetween(std::optional<Bound> min, std::optional<Bound> max) {
  if (min.has_value() && max.has_value() && min->value > max->value) return builder_.Never();
  // A bound of the other sign is none; between them lies zero, which either sign may have.
  const auto magnitude = [](const std::optional<Bound>& bound, bool has_sign) {
    std::optional<Magnitude> out;
    if (bound.has_value() && (has_sign ? bound->value <= 0 : bound->value >= 0)) {
      out = Magnitude{AbsoluteOf(bound->value), bound->is_exclusive};
    }
    return out;
  };
  std::vector<ExprId> parts;
  if (!max.has_value() || max->value > 0 || (max->value == 0 && !max->is_exclusive)) {
    parts.push_back(
        MagnitudesBetween(magnitude(min, false).value_or(Magnitude{}), magnitude(max, false)));
  }
  if (!min.has_value() || min->value < 0) {
    parts.push_back(builder_.Sequence(
        {ByteOf("-"),
         MagnitudesBetween(magnitude(max, true).value_or(Magnitude{}), magnitude(min, true))}));
  }
  return builder_.Choice(std::move(parts));
}

// As deep as the value, which its parser bounds.
ExprId JsonParts::Constant(const JsonValue& value) {
  if (const std::string* text = value.IfString()) {
    return builder_.Literal("\"" + JsonEscaped(*text) + "\"");
  }
  if (const JsonValue::Object* object = value.IfObject()) {
    std::vector<ObjectMember> members;
    for (const JsonValue::Member& member : *object) {
      members.push_back({.member = Member(builder_.Literal("\"" + JsonEscaped(member.key) + "\""),
                                          Constant(member.value)),
                         .required = true});
    }
    return ObjectOf(members, std::nullopt);
  }
  if (const JsonValue::Array* array = value.IfArray()) {
    std::vector<ExprId> items;
    for (const JsonValue& item : *array) items.push_back(Constant(item));
    const auto count = static_cast<int64_t>(items.size());
    return ArrayOf(items, std::nullopt, count, count);
  }
  return builder_.Literal(ToPythonJson(value));
}

ExprId JsonParts::Member(ExprId quoted_key, ExprId value) {
  return builder_.Sequence({quoted_key, Blanks(), ByteOf(":"), Blanks(), value});
}

// After the first written member each further one has a separator before it, and which is the first
// depends on the optional ones that were left out. So there are two rules per member: what may come
// while none was written, and what may come after one.
ExprId JsonParts::InOrder(const std::vector<ObjectMember>& members, std::optional<ExprId> extra,
                          ExprId separator, ExprId end) {
  ExprId first = builder_.Empty(), rest = end;
  if (extra.has_value()) {
    const ExprId more = builder_.Repeat(builder_.Sequence({separator, *extra}), 0, -1);
    rest = builder_.Sequence({more, end});
    first = builder_.Optional(builder_.Sequence({*extra, rest}));
  }
  for (size_t i = members.size(); i-- > 0;) {
    const ExprId member = members[i].member;
    const ExprId begins = builder_.Sequence({member, rest});
    const ExprId follows = builder_.Sequence({separator, member, rest});
    if (members[i].required) {
      first = builder_.NewRuleOf("members", begins);
      rest = builder_.NewRuleOf("members", follows);
    } else {
      first = builder_.NewRuleOf("members", builder_.Choice({begins, first}));
      rest = builder_.NewRuleOf("members", builder_.Choice({follows, rest}));
    }
  }
  return first;
}

ExprId JsonParts::ObjectOf(const std::vector<ObjectMember>& members, std::optional<ExprId> extra) {
  const ExprId comma = builder_.Sequence({Blanks(), ByteOf(","), Blanks()});
  return builder_.Sequence(
      {ByteOf("{"), Blanks(), InOrder(members, extra, comma, Blanks()), ByteOf("}")});
}

ExprId JsonParts::ArrayOf(const std::vector<ExprId>& prefix, std::optional<ExprId> rest,
                          int64_t min, int64_t max) {
  const auto num_prefix = static_cast<int64_t>(prefix.size());
  if (!rest.has_value()) max = max < 0 ? num_prefix : std::min(max, num_prefix);
  if (max >= 0 && min > max) return builder_.Never();
  const ExprId comma = builder_.Sequence({Blanks(), ByteOf(","), Blanks()});
  // `tail` is what may follow after i items; built from the last one back.
  ExprId tail = builder_.Empty();
  const auto optional_from = [&](ExprId expr, int64_t index) {
    return index < min ? expr : builder_.Optional(expr);
  };
  if (rest.has_value() && (max < 0 || max > num_prefix)) {
    const int64_t least = std::max<int64_t>(min - num_prefix, 0);
    const int64_t most = max < 0 ? -1 : max - num_prefix;
    const ExprId item = builder_.Sequence({comma, *rest});
    if (num_prefix > 0) {
      tail = builder_.Repeat(item, least, most);
    } else {
      const ExprId more =
          builder_.Repeat(item, std::max<int64_t>(least - 1, 0), most < 0 ? -1 : most - 1);
      tail = optional_from(builder_.Sequence({*rest, more, Blanks()}), 0);
    }
  }
  for (int64_t i = std::min(num_prefix, max < 0 ? num_prefix : max); i-- > 0;) {
    const ExprId item = prefix[static_cast<size_t>(i)];
    const ExprId here =
        i == 0 ? builder_.Sequence({item, tail, Blanks()}) : builder_.Sequence({comma, item, tail});
    tail = builder_.NewRuleOf("items", optional_from(here, i));
  }
  return builder_.Sequence({ByteOf("["), Blanks(), tail, ByteOf("]")});
}

Result<Grammar> JsonObjectGrammar() {
  GrammarBuilder builder;
  JsonParts parts(builder);
  const RuleId root = builder.NewRule("JSON object");
  builder.SetBody(root, builder.Sequence({parts.Blanks(), parts.Object()}));
  return builder.Build(root);
}

}  // namespace fathom
