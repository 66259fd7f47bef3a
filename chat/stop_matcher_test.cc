#include "chat/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace fathom {
namespace {

StopMatcher Make(std::vector<std::string> stops, bool include_stop = false) {
  Result<StopMatcher> matcher = StopMatcher::Create(std::move(stops), include_stop);
  EXPECT_TRUE(matcher.ok()) << matcher.status().ToString();
  return std::move(matcher).value();
}

struct Outcome {
  std::string text;
  std::string stop;  // empty: none matched
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome Feed(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Outcome outcome;
  for (const std::string& piece : pieces) {
    const StopMatcher::Output output = matcher.Push(piece);
    outcome.text += output.text;
    if (output.stop) outcome.stop = *output.stop;
  }
  outcome.text += matcher.Finish();
  return outcome;
}

// The rule said plainly: for every end position, is there a stop string that ends here?
Outcome Model(const std::string& text, const std::vector<std::string>& stops, bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > longest.size()) {
        longest = stop;
      }
    }
    if (!longest.empty()) {
      return {text.substr(0, end - (include_stop ? 0 : longest.size())), longest};
    }
  }
  return {text, ""};
}

TEST(StopMatcher, EarliestCompletedMatchWinsNotTheFirstOfTheList) {
  EXPECT_EQ(Feed(Make({"long stop", "st"}), {"a long stop"}), (Outcome{"a long ", "st"}));
  EXPECT_EQ(Feed(Make({"b", "ab"}), {"xab"}), (Outcome{"x", "ab"})) << "same end: the longest";
  EXPECT_EQ(Feed(Make({"ab", "b"}), {"xab"}), (Outcome{"x", "ab"}));
}

TEST(StopMatcher, IncludesTheStopStringWhenAsked) {
  EXPECT_EQ(Feed(Make({"END"}, true), {"textEN", "D more"}), (Outcome{"textEND", "END"}));
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBeAStart) {
  StopMatcher matcher = Make({"\n\nUser", "aab"});
  EXPECT_EQ(matcher.Push("hello\n").text, "hello");
  EXPECT_EQ(matcher.Push("x").text, "\nx");
  EXPECT_EQ(matcher.Push("aaa").text, "a") << "aa may still become aab";
  const StopMatcher::Output output = matcher.Push("bc");
  EXPECT_EQ(output.text, "");
  EXPECT_EQ(output.stop, "aab");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.Push("more").text, "") << "the text has ended";
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, WithoutStopStringsNothingIsHeld) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Push("any\n").text, "any\n");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, FinishGivesOutWhatWasHeld) {
  StopMatcher matcher = Make({"stop"});
  EXPECT_EQ(matcher.Push("a sto").text, "a ");
  EXPECT_EQ(matcher.Finish(), "sto");
}

TEST(StopMatcher, RefusesEmptyAndTooManyStopStrings) {
  EXPECT_FALSE(StopMatcher::Create({"a", ""}, false).ok());
  EXPECT_TRUE(StopMatcher::Create(std::vector<std::string>(64, "a"), false).ok());
  EXPECT_FALSE(StopMatcher::Create(std::vector<std::string>(65, "a"), false).ok());
}

TEST(StopMatcher, EqualsTheModelForRandomStopsAndSplits) {
  std::mt19937 random(3);
  const auto word = [&](size_t max_size) {
    std::string text;
    for (size_t i = 0, size = 1 + random() % max_size; i < size; ++i) {
      text += static_cast<char>('a' + random() % 2);
    }
    return text;
  };
  int matched = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0, count = random() % 4; i < count; ++i) stops.push_back(word(6));
    const std::string text = word(30);
    const bool include_stop = random() % 2 == 0;
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      pieces.push_back(text.substr(at, 1 + random() % 5));
      at += pieces.back().size();
    }
    const Outcome expected = Model(text, stops, include_stop);
    ASSERT_EQ(Feed(Make(stops, include_stop), pieces), expected) << text;
    // Nothing that is given out may turn out to belong to a match: check every prefix.
    StopMatcher matcher = Make(stops, false);
    const std::string kept = Model(text, stops, false).text;
    std::string given;
    for (const std::string& piece : pieces) {
      given += matcher.Push(piece).text;
      ASSERT_TRUE(kept.starts_with(given)) << text;
    }
    matched += expected.stop.empty() ? 0 : 1;
  }
  EXPECT_GT(matched, 5000);
  EXPECT_LT(matched, 19'000);
}

// 64 long stop strings that almost match everywhere: the naive search would take 64 * 10^4 * 10^6
// steps.
TEST(StopMatcher, IsLinearForStopStringsThatAlmostMatch) {
  std::vector<std::string> stops;
  for (size_t i = 0; i < 64; ++i) stops.push_back(std::string(10'000 + i, 'a') + "b");
  StopMatcher matcher = Make(std::move(stops));
  std::string given;
  for (int i = 0; i < 1000; ++i) given += matcher.Push(std::string(300, 'a')).text;
  EXPECT_EQ(given.size() + matcher.Finish().size(), 300'000u);
}

}  // namespace
}  // namespace fathom
