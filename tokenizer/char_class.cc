#include "tokenizer/char_class.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

constexpr char32_t kNumCodePoints = 0x110000;

// Group i + 1 finds runs of kGroupClass[i]. The categories exclude each other, so order is free.
constexpr char kCategoryPattern[] = R"((\p{L}+)|(\p{M}+)|(\p{N}+)|([\p{P}\p{S}]+))";
constexpr uint8_t kGroupClass[] = {kCharLetter, kCharMark, kCharNumber, kCharSymbol};

std::string AllScalarValues() {
  std::string all;
  all.reserve(size_t{kNumCodePoints} * 4);
  for (char32_t code = 0; code < kNumCodePoints; ++code) {
    if (code < 0xD800 || code > 0xDFFF) AppendUtf8(code, all);
  }
  return all;
}

void AddCategories(std::vector<uint8_t>& bits) {
  const std::string all = AllScalarValues();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(all.data());
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kCategoryPattern), PCRE2_ZERO_TERMINATED,
                    PCRE2_UTF, &error, &error_offset, nullptr);
  FATHOM_CHECK(code != nullptr, "category pattern: PCRE2 error " + std::to_string(error));
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // only faster; the interpreter serves as well
  pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
  FATHOM_CHECK(match != nullptr, "out of memory");
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
  for (PCRE2_SIZE offset = 0;; offset = range[1]) {
    // The subject is ours and valid; PCRE2 would otherwise check all of it at every call.
    const int num_groups =
        pcre2_match(code, subject, all.size(), offset, PCRE2_NO_UTF_CHECK, match, nullptr);
    if (num_groups == PCRE2_ERROR_NOMATCH) break;
    FATHOM_CHECK(num_groups >= 2, "category match: PCRE2 error " + std::to_string(num_groups));
    for (PCRE2_SIZE i = range[0]; i < range[1];) {
      const Utf8Char c = DecodeValidUtf8(all, i);
      bits[c.code] |= kGroupClass[num_groups - 2];
      i += c.num_bytes;
    }
  }
  pcre2_match_data_free(match);
  pcre2_code_free(code);
}

void AddRange(std::vector<uint8_t>& bits, char32_t first, char32_t last, uint8_t char_class) {
  for (char32_t code = first; code <= last; ++code) bits[code] |= char_class;
}

}  // namespace

CharClasses::CharClasses() : bits_(kNumCodePoints, 0) {
  AddCategories(bits_);
  constexpr char32_t kSpaces[][2] = {
      {0x09, 0x0D},     {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
      {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
  for (const auto& range : kSpaces) AddRange(bits_, range[0], range[1], kCharSpace);
  AddRange(bits_, '\n', '\n', kCharNewline);
  AddRange(bits_, '\r', '\r', kCharNewline);
  AddRange(bits_, 0x4E00, 0x9FA5, kCharHanKana);
  AddRange(bits_, 0x3040, 0x30FF, kCharHanKana);
}

const CharClasses& CharClasses::Get() {
  static const CharClasses classes;
  return classes;
}

}  // namespace fathom
