#include "base/log_fields.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(LogFields, ComeBackAsTheyWereAdded) {
  const std::string message =
      "done" +
      LogFields().Add("id", "a b=c").Add("tokens", 17).Add("seconds", 0.25).Add("none", "").Text();
  const LogMessage split = SplitLogMessage(message);
  EXPECT_EQ(split.words, "done");
  ASSERT_EQ(split.fields.size(), 4u);
  EXPECT_EQ(split.fields[0].key, "id");
  EXPECT_EQ(split.fields[0].value, "a b=c");
  EXPECT_FALSE(split.fields[0].is_number);
  EXPECT_EQ(split.fields[1].value, "17");
  EXPECT_TRUE(split.fields[1].is_number);
  EXPECT_EQ(split.fields[2].value, "0.25");
  EXPECT_EQ(split.fields[3].value, "");
}

TEST(LogFields, ValuesCannotMakeFieldsOrLines) {
  const std::string message = "x" + LogFields()
                                        .Add("id",
                                             "a\x1e"
                                             "b\x1f"
                                             "c\nd\x1d")
                                        .Text();
  const LogMessage split = SplitLogMessage(message);
  ASSERT_EQ(split.fields.size(), 1u);
  EXPECT_EQ(split.fields[0].value, "a?b?c?d?");
}

TEST(LogFields, FieldsForProgramsSaySo) {
  const std::string message = "5 tokens" + LogFields::ForPrograms().Add("tokens", 5).Text();
  const LogMessage split = SplitLogMessage(message);
  EXPECT_EQ(split.words, "5 tokens");
  EXPECT_TRUE(split.for_programs);
  ASSERT_EQ(split.fields.size(), 1u);
  EXPECT_EQ(split.fields[0].value, "5");
  EXPECT_FALSE(SplitLogMessage("x" + LogFields().Add("a", 1).Text()).for_programs);
}

TEST(LogFields, AMessageWithoutIsAllWords) {
  EXPECT_EQ(SplitLogMessage("plain\ttext").words, "plain\ttext");
  EXPECT_TRUE(SplitLogMessage("plain").fields.empty());
  EXPECT_EQ(SplitLogMessage("").words, "");
  // Not made by LogFields: nothing is read beyond the text.
  EXPECT_TRUE(SplitLogMessage("x\x1e").fields.empty());
}

}  // namespace
}  // namespace fathom
