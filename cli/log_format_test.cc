#include "cli/log_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/details/log_msg.h>

#include <nlohmann/json.hpp>

#include "base/log_fields.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::json;

std::string Line(LogFormat format, const std::string& message) {
  const spdlog::details::log_msg log(
      std::chrono::system_clock::time_point(std::chrono::milliseconds(1'790'000'000'007)), {},
      "fathom", spdlog::level::warn, message);
  spdlog::memory_buf_t out;
  MakeLogFormatter(format)->format(log, out);
  return {out.data(), out.size()};
}

TEST(LogFormat, PeopleGetFieldsBehindTheWords) {
  const std::string fields = LogFields().Add("id", "r1").Add("tokens", 3).Text();
  EXPECT_THAT(Line(LogFormat::kText, "done" + fields),
              testing::EndsWith(" warning done id=r1 tokens=3\n"));
  const std::string hidden = LogFields::ForPrograms().Add("tokens", 3).Text();
  EXPECT_THAT(Line(LogFormat::kText, "3 tokens" + hidden), testing::EndsWith(" 3 tokens\n"));
}

TEST(LogFormat, ProgramsGetAnObjectALine) {
  const std::string fields =
      LogFields().Add("id", "r1").Add("seconds", 0.5).Add("message", "mine").Text();
  const std::string line = Line(LogFormat::kJson, "a \"b\"\nc" + fields);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(Json::parse(line), (Json{{"time", "2026-09-21T14:13:20.007Z"},
                                     {"level", "warning"},
                                     {"message", "a \"b\"\nc"},
                                     {"id", "r1"},
                                     {"seconds", 0.5}}));
}

TEST(LogFormat, WhatIsNoTextStaysALine) {
  for (const std::string& message :
       {std::string("\xff\xfe"), std::string(""), std::string("\0x", 2),
        "x" + LogFields().Add("a", std::string_view("\x80")).Text()}) {
    EXPECT_TRUE(Json::parse(Line(LogFormat::kJson, message), nullptr, false).is_object());
  }
}

}  // namespace
}  // namespace fathom::cli
