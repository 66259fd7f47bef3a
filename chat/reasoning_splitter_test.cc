#include "chat/reasoning_splitter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "chat/vector_file.h"

namespace fathom {
namespace {

struct Answer {
  std::string reasoning;
  std::string content;
  friend bool operator==(const Answer&, const Answer&) = default;
};

void Collect(const std::vector<OutputDelta>& deltas, Answer& answer) {
  for (size_t i = 0; i < deltas.size(); ++i) {
    EXPECT_FALSE(deltas[i].text.empty());
    if (i > 0) {
      EXPECT_NE(deltas[i].kind, deltas[i - 1].kind);
    }
    (deltas[i].kind == OutputState::kReasoning ? answer.reasoning : answer.content) +=
        deltas[i].text;
  }
}

Answer Split(OutputState start, const std::vector<std::string>& pieces) {
  ReasoningSplitter splitter(start);
  Answer answer;
  for (const std::string& piece : pieces) Collect(splitter.Push(piece), answer);
  Collect(splitter.Finish(), answer);
  return answer;
}

std::vector<std::string> CutAtRandom(const std::string& text, size_t max_piece,
                                     std::mt19937& random) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    pieces.push_back(text.substr(at, 1 + random() % max_piece));
    at += pieces.back().size();
  }
  return pieces;
}

// Whole, byte by byte, every cut in two, pieces of every size to 17, and random cuts.
void ExpectSameForEverySplit(OutputState start, const std::string& text, const Answer& expected) {
  EXPECT_EQ(Split(start, {text}), expected) << text;
  for (size_t size = 1; size <= 17; ++size) {
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size(); at += size) pieces.push_back(text.substr(at, size));
    EXPECT_EQ(Split(start, pieces), expected) << text << " in pieces of " << size;
  }
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Split(start, {text.substr(0, cut), text.substr(cut)}), expected)
        << text << " cut at " << cut;
  }
  std::mt19937 random(static_cast<unsigned>(text.size()));
  for (int round = 0; round < 200; ++round) {
    EXPECT_EQ(Split(start, CutAtRandom(text, 9, random)), expected) << text;
  }
}

OutputState StartOf(const JsonValue& test) {
  return StringAt(test, "start") == "reasoning" ? OutputState::kReasoning : OutputState::kContent;
}
std::string TextOrEmpty(const JsonValue& expect, std::string_view key) {
  const JsonValue* value = expect.FindNonNull(key);
  return value == nullptr ? "" : *value->IfString();
}

// Every vector without tools, and those with tools whose text holds nothing that looks like DSML.
TEST(ReasoningSplitter, EqualsTheVectorsThatNeedNoToolParserForEverySplit) {
  const JsonValue vectors = ReadVectorFile("chat/parse.json");
  int without_tools = 0;
  int with_unused_tools = 0;
  for (const JsonValue& test : ArrayAt(vectors, "cases")) {
    const std::string text = StringAt(test, "text");
    const bool has_tools = test.FindNonNull("tools") != nullptr;
    if (has_tools && text.find("DS") != std::string::npos) continue;
    SCOPED_TRACE(StringAt(test, "id") + " " + StringAt(test, "note"));
    const JsonValue& expect = *test.Find("expect");
    ExpectSameForEverySplit(StartOf(test), text,
                            {TextOrEmpty(expect, "reasoning"), TextOrEmpty(expect, "content")});
    ++(has_tools ? with_unused_tools : without_tools);
  }
  EXPECT_EQ(without_tools, 31);
  EXPECT_EQ(with_unused_tools, 2);
}

TEST(ReasoningSplitter, GivesOutPlainTextWithTheCallThatBroughtIt) {
  // Report R044: chunks and the exact deltas.
  ReasoningSplitter splitter(OutputState::kReasoning);
  const auto first = splitter.Push("A final");
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].text, "A final");
  EXPECT_EQ(splitter.state(), OutputState::kReasoning);
  const auto second = splitter.Push(" thought.</think>Answer starts.");
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].kind, OutputState::kReasoning);
  EXPECT_EQ(second[0].text, " thought.");
  EXPECT_EQ(second[1].kind, OutputState::kContent);
  EXPECT_EQ(second[1].text, "Answer starts.");
  EXPECT_EQ(splitter.state(), OutputState::kContent);
  EXPECT_TRUE(splitter.Finish().empty());
}

TEST(ReasoningSplitter, HoldsOnlyWhatMayBecomeAMark) {
  ReasoningSplitter splitter(OutputState::kContent);
  EXPECT_EQ(splitter.Push("a <").at(0).text, "a ");
  EXPECT_EQ(splitter.Push("b").at(0).text, "<b");
  EXPECT_TRUE(splitter.Push("</thin").empty());
  EXPECT_EQ(splitter.Push("g>").at(0).text, "</thing>");
  EXPECT_TRUE(splitter.Push("<｜end▁of").empty());
  EXPECT_TRUE(splitter.Push("▁sentence｜>").empty());
  EXPECT_EQ(splitter.Push("c\n\n").at(0).text, "c\n\n") << "no tools: line feeds need not be held";
  EXPECT_TRUE(splitter.Push("<th").empty());
  EXPECT_EQ(splitter.Finish().at(0).text, "<th");
}

TEST(ReasoningSplitter, WhiteSpaceBeforeAThinkMarkIsDroppedOnlyBeforeTheFirstContent) {
  EXPECT_EQ(Split(OutputState::kContent, {" \n\t<think>r</think> \n<think>s</think> a"}),
            (Answer{"rs", " a"}));
  EXPECT_EQ(Split(OutputState::kContent, {"a \n<think>r</think>b"}), (Answer{"r", "a \nb"}));
  EXPECT_EQ(Split(OutputState::kContent, {" </think> a"}), (Answer{"", "  a"}));
}

// Soups of marks, parts of marks and text: cutting them never changes the answer, and whole marks
// vanish.
TEST(ReasoningSplitter, MarkerSoupsGiveTheSameAnswerForEverySplit) {
  const std::string kParts[] = {
      "<think>", "</think>", "<｜end▁of▁sentence｜>", "<", "</", "<｜", "think>", "th", " ", "\n",
      "a",       "é"};
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = 0, parts = random() % 12; i < parts; ++i) text += kParts[random() % 12];
    const OutputState start = random() % 2 == 0 ? OutputState::kReasoning : OutputState::kContent;
    const Answer whole = Split(start, {text});
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      ASSERT_EQ(Split(start, {text.substr(0, cut), text.substr(cut)}), whole) << text;
    }
    ASSERT_EQ(Split(start, CutAtRandom(text, 1, random)), whole) << text;
    ASSERT_EQ(Split(start, CutAtRandom(text, 4, random)), whole) << text;
  }
}

}  // namespace
}  // namespace fathom
