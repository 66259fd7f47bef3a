#include "bench/load/sse_reader.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace fathom::load {
namespace {

using Events = std::vector<std::pair<std::string, std::string>>;

// Reads the text in pieces that end at the given places.
Events Read(std::string_view text, const std::vector<size_t>& cuts, bool* is_midway = nullptr) {
  SseReader reader;
  Events events;
  const auto take = [&events](std::string_view event, std::string_view data) {
    events.emplace_back(event, data);
  };
  size_t begin = 0;
  for (const size_t end : cuts) {
    EXPECT_TRUE(reader.Push(text.substr(begin, end - begin), take).ok());
    begin = end;
  }
  EXPECT_TRUE(reader.Push(text.substr(begin), take).ok());
  if (is_midway != nullptr) *is_midway = reader.is_midway();
  return events;
}

constexpr std::string_view kText =
    "\xef\xbb\xbf"
    "data: {\"a\": 1}\n\n"
    ": keep-alive\n\n"
    "event: ping\r\ndata:x\r\n\r\n"
    "id: 7\rdata: one\rdata:  two\r\r"
    "event: nothing\n\n"
    "data\n\n"
    "data: [DONE]\n\n";
const Events kEvents = {
    {"", "{\"a\": 1}"}, {"ping", "x"}, {"", "one\n two"}, {"", ""}, {"", "[DONE]"}};

TEST(SseReader, ReadsTheSameForEveryTwoCuts) {
  EXPECT_EQ(Read(kText, {}), kEvents);
  for (size_t first = 0; first <= kText.size(); ++first) {
    for (size_t second = first; second <= kText.size(); ++second) {
      ASSERT_EQ(Read(kText, {first, second}), kEvents) << first << " " << second;
    }
  }
}

TEST(SseReader, ReadsByteByByte) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < kText.size(); ++i) cuts.push_back(i);
  EXPECT_EQ(Read(kText, cuts), kEvents);
}

TEST(SseReader, KnowsWhereAStreamWasCutOff) {
  bool is_midway = true;
  Read("data: a\n\n", {}, &is_midway);
  EXPECT_FALSE(is_midway);
  for (const std::string_view text : {"data: a\n\nda", "data: a\n\ndata: b\n"}) {
    EXPECT_EQ(Read(text, {}, &is_midway).size(), 1U);
    EXPECT_TRUE(is_midway) << text;
  }
}

TEST(SseReader, RefusesEventsWithoutEnd) {
  const auto ignore = [](std::string_view, std::string_view) {};
  SseReader line(100);
  EXPECT_TRUE(line.Push("data: " + std::string(90, 'x'), ignore).ok());
  EXPECT_EQ(line.Push("01234567890", ignore).code(), StatusCode::kDataLoss);
  SseReader lines(100);
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = lines.Push("data: 0123456\n", ignore);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace fathom::load
