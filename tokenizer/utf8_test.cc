#include "tokenizer/utf8.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

constexpr size_t kAllValid = std::string_view::npos;

TEST(Utf8, EveryScalarValueIsWrittenAndReadBack) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(code, text);
    const Utf8Unit unit = NextUtf8Unit(text);
    ASSERT_EQ(unit.state, Utf8State::kValid);
    ASSERT_EQ(unit.num_bytes, text.size());
    ASSERT_EQ(unit.code, code);
    ASSERT_EQ(DecodeValidUtf8(text, 0).code, code);
  }
}

TEST(Utf8, FindsTheFirstBrokenByte) {
  EXPECT_EQ(FindInvalidUtf8(""), kAllValid);
  EXPECT_EQ(FindInvalidUtf8("a\xC3\xA9\xF0\x9F\x98\x80"), kAllValid);
  EXPECT_EQ(FindInvalidUtf8("ab\xC3"), 2u);
  EXPECT_EQ(FindInvalidUtf8("\xED\xA0\x80"), 0u) << "surrogate";
  EXPECT_EQ(FindInvalidUtf8("a\xC0\x80"), 1u) << "overlong";
  EXPECT_EQ(FindInvalidUtf8("\xF4\x90\x80\x80"), 0u) << "above U+10FFFF";
  EXPECT_EQ(FindInvalidUtf8("\xF8\x88\x80\x80\x80"), 0u) << "five bytes";
}

// The table of the Unicode standard, section 3.9 (maximal subparts).
TEST(Utf8, EachMaximalBrokenPartBecomesOneReplacement) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(LossyUtf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a" + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(LossyUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(LossyUtf8("\xF0\x9F\x98"), r) << "an incomplete end is one part";
}

TEST(Utf8, IncompleteSuffixIsLeftOutAndCounted) {
  std::string out;
  EXPECT_EQ(AppendValidUtf8("x\xF0\x9F\x98", out), 3u);
  EXPECT_EQ(out, "x");
  EXPECT_EQ(AppendValidUtf8("\xF0\x8F", out), 0u) << "F0 8F can never become valid";
}

}  // namespace
}  // namespace fathom
