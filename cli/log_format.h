// How log lines look: words for people, or an object a line for programs. Fields of a message
// (base/log_fields.h) become " key=value" or members.
#pragma once

#include <spdlog/formatter.h>

#include <memory>
#include <string>

namespace fathom::cli {

enum class LogFormat { kText, kJson };

std::unique_ptr<spdlog::formatter> MakeLogFormatter(LogFormat format);

// The program's logger, on standard error: standard output belongs to answers. Once, at the start.
void StartLog();
void SetLogFormat(LogFormat format);

}  // namespace fathom::cli
