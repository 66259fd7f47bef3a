// JSON as a grammar: the pieces that schemas are put together from, and "any object".
//
// Everything that a model could go on with forever without getting anywhere is bounded: blanks
// between tokens (two line breaks with up to 64 blanks after each) and digits of numbers (no number
// leaves the range of a double). Strings never hold half a surrogate pair. So every complete text
// is one that a strict reader takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"
#include "grammar/grammar.h"

namespace fathom {

// Rules are made when first used, one set per builder. Single-threaded.
class JsonParts {
 public:
  // Keeps a reference to `builder`.
  explicit JsonParts(GrammarBuilder& builder) : builder_(builder) {}

  ExprId Blanks();
  ExprId StringChar();  // one character, escaped or not
  ExprId String();
  ExprId Integer();
  ExprId Number();
  ExprId Value();
  ExprId Object();
  ExprId Array();

  // Whole numbers from `min` to `max`, written without superfluous zeros and never -0.
  ExprId IntegerBetween(std::optional<int64_t> min, std::optional<int64_t> max);
  // Numbers from `min` to `max`, as digits with an optional fraction.
  struct Bound {
    int64_t value = 0;
    bool is_exclusive = false;
  };
  ExprId NumberBetween(std::optional<Bound> min, std::optional<Bound> max);

  // This value. Members in the given order, blanks between tokens; strings in one spelling.
  ExprId Constant(const JsonValue& value);
  // "key" blank ':' blank value
  ExprId Member(ExprId quoted_key, ExprId value);
  struct ObjectMember {
    ExprId member = -1;
    bool required = false;
  };
  // `members` in this order, the required ones always; then any number of `extra` (absent: none).
  // `separator` stands between them, `end` behind the last if there is any.
  ExprId InOrder(const std::vector<ObjectMember>& members, std::optional<ExprId> extra,
                 ExprId separator, ExprId end);
  // '{' InOrder '}'
  ExprId ObjectOf(const std::vector<ObjectMember>& members, std::optional<ExprId> extra);
  // '[' items ']': the first ones of `prefix`, then `rest` (absent: none), `min` to `max` in all
  // (max < 0: any number).
  ExprId ArrayOf(const std::vector<ExprId>& prefix, std::optional<ExprId> rest, int64_t min,
                 int64_t max);

 private:
  ExprId ByteOf(std::string_view bytes);
  ExprId Digits(int64_t min, int64_t max);
  ExprId Fraction();
  ExprId DigitsBetween(uint64_t min, std::optional<uint64_t> max);
  struct Magnitude {
    uint64_t value = 0;
    bool is_exclusive = false;
  };
  ExprId MagnitudesBetween(Magnitude from, std::optional<Magnitude> to);

  GrammarBuilder& builder_;
  std::optional<ExprId> blanks_, string_char_, string_, integer_, number_, value_, object_, array_;
};

// Any JSON object, blanks before it allowed.
Result<Grammar> JsonObjectGrammar();

}  // namespace fathom
