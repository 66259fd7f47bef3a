#include "cli/log_format.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/log_fields.h"

namespace fathom::cli {
namespace {

std::string_view View(spdlog::string_view_t text) { return {text.data(), text.size()}; }

class TextFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const LogMessage split = SplitLogMessage(View(message.payload));
    std::string text(split.words);
    for (const LogField& field : split.fields) {
      if (split.for_programs) break;
      text.append(" ").append(field.key).append("=").append(field.value);
    }
    spdlog::details::log_msg shown = message;
    shown.payload = text;
    pattern_.format(shown, out);
    // Where the sink puts its colours.
    message.color_range_start = shown.color_range_start;
    message.color_range_end = shown.color_range_end;
  }
  [[nodiscard]] std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<TextFormatter>();
  }

 private:
  spdlog::pattern_formatter pattern_{"%Y-%m-%d %H:%M:%S %^%l%$ %v"};
};

// "2026-01-31T12:00:00.123Z"
std::string UtcTime(spdlog::log_clock::time_point time) {
  const std::time_t seconds = spdlog::log_clock::to_time_t(time);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch());
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + size, sizeof(text) - size, ".%03dZ", static_cast<int>(since.count() % 1000));
  return text;
}

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const LogMessage split = SplitLogMessage(View(message.payload));
    nlohmann::ordered_json line;
    line["time"] = UtcTime(message.time);
    line["level"] = View(spdlog::level::to_string_view(message.level));
    line["message"] = split.words;
    for (const LogField& field : split.fields) {
      auto value = field.is_number ? nlohmann::ordered_json::parse(field.value, nullptr, false)
                                   : nlohmann::ordered_json(field.value);
      // The line's own members stay what they are.
      const std::string key(field.key);
      if (!line.contains(key)) line[key] = value.is_discarded() ? nullptr : std::move(value);
    }
    const std::string text =
        line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    out.append(text.data(), text.data() + text.size());
  }
  [[nodiscard]] std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

}  // namespace

std::unique_ptr<spdlog::formatter> MakeLogFormatter(LogFormat format) {
  if (format == LogFormat::kJson) return std::make_unique<JsonFormatter>();
  return std::make_unique<TextFormatter>();
}

void StartLog() {
  spdlog::set_default_logger(spdlog::stderr_color_mt("fathom"));
  SetLogFormat(LogFormat::kText);
}

void SetLogFormat(LogFormat format) {
  spdlog::default_logger()->set_formatter(MakeLogFormatter(format));
}

}  // namespace fathom::cli
