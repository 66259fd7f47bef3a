// LogFields: what belongs to a log line beside its words, such as ids and times.
//
//   spdlog::info("request finished{}", LogFields().Add("id", id).Add("seconds", 0.25).Text());
//
// People see " id=.. seconds=0.25" behind the words, unless the words say it all; with --log-format
// json the fields are members of the line's object. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fathom {

class LogFields {
 public:
  LogFields() = default;
  // The words say the same, so only programs need the fields.
  static LogFields ForPrograms();

  // Control characters of a value become '?'. A text may come from a client; keep keys constant.
  LogFields& Add(std::string_view key, std::string_view value);
  LogFields& Add(std::string_view key, const char* value) {
    return Add(key, std::string_view(value));
  }
  LogFields& Add(std::string_view key, int64_t value);
  LogFields& Add(std::string_view key, int value) { return Add(key, static_cast<int64_t>(value)); }
  LogFields& Add(std::string_view key, double value);  // finite
  // To stand at the end of a message; for SplitLogMessage only.
  [[nodiscard]] const std::string& Text() const { return text_; }

 private:
  std::string text_;
};

struct LogField {
  std::string_view key;
  std::string_view value;
  bool is_number = false;
};

struct LogMessage {
  std::string_view words;
  bool for_programs = false;
  std::vector<LogField> fields;
};
// Takes a message apart again; the views point into it. One without fields is all words.
LogMessage SplitLogMessage(std::string_view message);

}  // namespace fathom
