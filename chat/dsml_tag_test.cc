#include "chat/dsml_tag.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace fathom {
namespace {

using Element = DsmlTag::Element;

struct Match {
  std::optional<DsmlTag> tag;  // none: broken or not at its end
  bool failed = false;
  size_t num_read = 1;  // with the byte at which it ended
  size_t head_size = 0;
};

Match Read(const std::string& text) {
  EXPECT_EQ(text.front(), '<');
  DsmlTagMatcher matcher;
  matcher.Reset();
  Match match;
  while (match.num_read < text.size()) {
    const DsmlTagMatcher::Step step = matcher.Push(text[match.num_read++]);
    if (step == DsmlTagMatcher::Step::kDone) match.tag = matcher.tag();
    match.failed = step == DsmlTagMatcher::Step::kFailed;
    if (step != DsmlTagMatcher::Step::kMore) break;
  }
  match.head_size = matcher.head_size();
  return match;
}

bool IsTag(const std::string& text) {
  const Match match = Read(text);
  return match.tag && match.num_read == text.size();
}

TEST(DsmlTag, ReadsElementNameAndString) {
  const Match match = Read("<｜DSML｜parameter name=\" city \" string=\"true\">text");
  ASSERT_TRUE(match.tag);
  EXPECT_TRUE(match.tag->Opens(Element::kParameter));
  EXPECT_FALSE(match.tag->Opens(Element::kInvoke));
  EXPECT_FALSE(match.tag->Closes(Element::kParameter));
  EXPECT_EQ(match.tag->name, "city");
  EXPECT_EQ(match.tag->string_attribute, "true");
  EXPECT_EQ(match.tag->style, "｜DSML｜");

  EXPECT_TRUE(Read("</｜DSML｜invoke>").tag->Closes(Element::kInvoke));
  EXPECT_TRUE(Read("<｜DSML｜function_calls>").tag->Opens(Element::kWrapper));
  EXPECT_TRUE(Read("</｜DSML｜anything>").tag->Closes(Element::kWrapper));
  EXPECT_FALSE(Read("<｜DSML｜invoke>").tag->Opens(Element::kInvoke)) << "no name";
  EXPECT_FALSE(Read("<｜DSML｜invoke name=\" \">").tag->Opens(Element::kInvoke));
  EXPECT_FALSE(Read("<｜DSML｜invoke xname=\"f\">").tag->Opens(Element::kInvoke));
  EXPECT_EQ(Read("<｜DSML｜invoke name=\"f\" name=\"g\">").tag->name, "f");
}

TEST(DsmlTag, BarsAndSpaceAreItsStyle) {
  EXPECT_EQ(Read("<DSML|calls>").tag->style, "DSML|");
  EXPECT_EQ(Read("</|DSML‖｜calls>").tag->style, "|DSML‖｜");
  EXPECT_EQ(Read("<｜｜DSML｜ calls>").tag->style, "｜｜DSML｜ ");
  EXPECT_FALSE(IsTag("<｜DSML>"));
  EXPECT_FALSE(IsTag("<｜DSMLcalls>"));
  EXPECT_FALSE(IsTag("<｜｜｜DSML｜calls>"));
  EXPECT_FALSE(IsTag("<｜DSML｜｜｜calls>"));
  EXPECT_FALSE(IsTag("<｜DSML｜  calls>"));
  EXPECT_FALSE(IsTag("< ｜DSML｜calls>"));
  EXPECT_FALSE(IsTag("<｜dsml｜calls>"));
}

TEST(DsmlTag, IsBounded) {
  const auto attributes = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += " a=\"\"";
    return "<｜DSML｜invoke" + text + ">";
  };
  EXPECT_TRUE(IsTag(attributes(6)));
  EXPECT_FALSE(IsTag(attributes(7)));
  const auto spaces = [](size_t count) {
    return "<｜DSML｜invoke" + std::string(count, '\n') + "name=\"f\"" + std::string(count, ' ') +
           ">";
  };
  EXPECT_TRUE(IsTag(spaces(8)));
  EXPECT_FALSE(IsTag(spaces(9)));
  const auto value = [](size_t count, const std::string& character) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text += character;
    return "<｜DSML｜invoke name=\"" + text + "\">";
  };
  EXPECT_TRUE(IsTag(value(256, "中")));
  EXPECT_FALSE(IsTag(value(257, "中")));
  EXPECT_TRUE(IsTag(value(256, "🙂")));
  EXPECT_LT(Read(value(100'000, "\x80")).num_read, 1100u) << "bytes that begin no character";
  EXPECT_FALSE(IsTag("<｜DSML｜invoke name=\"a<b\">"));
  EXPECT_FALSE(IsTag("<｜DSML｜invoke name=\"a\nb\">"));
  EXPECT_FALSE(IsTag("<｜DSML｜invoke name=\"a\"string=\"true\">"));
  EXPECT_FALSE(IsTag("<｜DSML｜invoke name=a>"));
  EXPECT_TRUE(IsTag("<｜DSML｜" + std::string(32, 'x') + ">"));
  EXPECT_FALSE(IsTag("<｜DSML｜" + std::string(33, 'x') + ">"));
}

TEST(DsmlTag, TheHeadIsWhatABrokenTagLosesInContent) {
  const auto head = [](const std::string& text) {
    const Match match = Read(text);
    EXPECT_TRUE(match.failed) << text;
    return text.substr(0, match.head_size);
  };
  EXPECT_EQ(head("<｜DSML｜invoke name=\"f\n"), "<｜DSML｜invoke");
  EXPECT_EQ(head("</｜DSML｜invoke2>"), "</｜DSML｜invoke");
  EXPECT_EQ(head("<｜DSML｜ 5"), "<｜DSML｜");
  EXPECT_EQ(head("<｜DSML｜｜<"), "<｜DSML｜｜");
  EXPECT_EQ(head("<｜DSML>"), "");
  EXPECT_EQ(head("<div>"), "");
}

}  // namespace
}  // namespace fathom
