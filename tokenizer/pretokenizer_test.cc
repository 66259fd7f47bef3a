#include "tokenizer/pretokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "tokenizer/utf8.h"

namespace fathom {
namespace {

using Pieces = std::vector<std::string>;

Pieces Scan(std::string_view text) {
  Pieces pieces;
  PieceScanner scanner(text);
  for (std::string_view piece; scanner.Next(&piece);) pieces.emplace_back(piece);
  return pieces;
}

// The published regexes, \s and \S written out: PCRE2 counts U+180E as white space.
#define SPACES \
  R"(\t-\r\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})"
constexpr const char* kRegexes[] = {
    R"(\p{N}{1,3})", R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
    R"re([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+)re"
    R"re(|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)re"
    "|[" SPACES "]*[\\r\\n]+|[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"};

// One Split with behaviour Isolated: matches and what lies between them, each a piece.
Pieces Split(const char* regex, const Pieces& input) {
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex), PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF, &error, &error_offset, nullptr);
  if (code == nullptr) {
    ADD_FAILURE() << "regex error " << error << " at " << error_offset;
    return {};
  }
  pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match);
  Pieces output;
  for (const std::string& text : input) {
    size_t done = 0;
    while (pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), done, 0, match,
                       nullptr) > 0) {
      if (range[0] > done) output.push_back(text.substr(done, range[0] - done));
      output.push_back(text.substr(range[0], range[1] - range[0]));
      done = range[1];
    }
    if (done < text.size()) output.push_back(text.substr(done));
  }
  pcre2_match_data_free(match);
  pcre2_code_free(code);
  return output;
}

Pieces SplitByRegexes(const std::string& text) {
  Pieces pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const char* regex : kRegexes) pieces = Split(regex, pieces);
  return pieces;
}

TEST(PieceScanner, CutsAsTheSpecificationSays) {
  EXPECT_EQ(Scan(""), Pieces());
  EXPECT_EQ(Scan("12345"), (Pieces{"123", "45"})) << "digits group from the left";
  EXPECT_EQ(Scan("x  123"), (Pieces{"x", "  ", "123"})) << "spaces before digits stay whole";
  EXPECT_EQ(Scan("    a"), (Pieces{"   ", " a"})) << "the last space goes to the word";
  EXPECT_EQ(Scan("  中"), (Pieces{"  ", "中"}));
  EXPECT_EQ(Scan("Hello, world!"), (Pieces{"Hello", ",", " world", "!"}));
  EXPECT_EQ(Scan("don't"), (Pieces{"don", "'t"}));
  EXPECT_EQ(Scan("a \r\n \n b"), (Pieces{"a", " \r\n \n", " b"}));
  EXPECT_EQ(Scan("ア・イ"), (Pieces{"ア", "・", "イ"})) << "step 3 works inside a Kana run";
  EXPECT_EQ(Scan("\xE2\x80\x8B\xE2\x80\x8B"), (Pieces{"\xE2\x80\x8B\xE2\x80\x8B"}))
      << "no alternative takes U+200B alone";
  EXPECT_EQ(Scan("a\xE1\xA0\x8E"), (Pieces{"a", "\xE1\xA0\x8E"})) << "U+180E is no white space";
}

// Every code point in the positions in which its class matters.
TEST(PieceScanner, EqualsTheRegexesForEveryCodePoint) {
  std::string text;
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    if (code >= 0x30000 && code < 0xE0000) continue;  // nothing but Han letters and unassigned
    for (const char* context : {"a", " ", "!", "\n"}) {
      AppendUtf8(code, text);
      text += context;
    }
    if (code % 64 == 63 || code == 0x10FFFF) {
      ASSERT_EQ(Scan(text), SplitByRegexes(text))
          << "up to code point " << static_cast<uint32_t>(code);
      text.clear();
    }
  }
}

TEST(PieceScanner, EqualsTheRegexesOnRandomText) {
  const std::vector<char32_t> alphabet = {
      'a',    'Z',    '0',     '9',     ' ',     ' ',    ' ',    '\n',   '\r',   '\t',   '!',
      '\'',   '\\',   '[',     '$',     0x00,    0x1F,   0x85,   0xA0,   0xAD,   0xBD,   0xE9,
      0x301,  0x660,  0x180E,  0x200B,  0x200D,  0x2028, 0x3000, 0x3001, 0x3007, 0x3040, 0x309B,
      0x3042, 0x30A0, 0x30FB,  0x30FC,  0x4E2D,  0x9FA5, 0x9FA6, 0xAC00, 0xFE0F, 0xFEFF, 0xFF11,
      0xFF5C, 0x2581, 0x1D7CE, 0x1F600, 0x20000, 0xE000, 0x0378, 0x20AC, 0x2160, 0x1F3FB};
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    const size_t num_chars = 1 + random() % 24;
    // Few different characters per text, so that runs and their borders are common.
    const size_t num_kinds = 1 + random() % 6;
    std::vector<char32_t> kinds;
    for (size_t i = 0; i < num_kinds; ++i) kinds.push_back(alphabet[random() % alphabet.size()]);
    for (size_t i = 0; i < num_chars; ++i) AppendUtf8(kinds[random() % kinds.size()], text);
    ASSERT_EQ(Scan(text), SplitByRegexes(text)) << "round " << round << ": " << text;
  }
}

}  // namespace
}  // namespace fathom
