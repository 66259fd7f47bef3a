// The `fathom` program: parses the command line and runs one command.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <csignal>
#include <iostream>

#include "cli/command.h"
#include "cli/version.h"

int main(int argc, char** argv) {
  using namespace fathom::cli;  // NOLINT(google-build-using-namespace): this is the program itself
  // Writing to a pipe that closed is an error of one write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  // Logs go to standard error: standard output belongs to answers.
  auto logger = spdlog::stderr_color_mt("fathom");
  logger->set_pattern("%Y-%m-%d %H:%M:%S %^%l%$ %v");
  spdlog::set_default_logger(logger);

  CLI::App app("fathom: DeepSeek-V4 inference without Python", "fathom");
  app.set_version_flag("--version", std::string("fathom ") + kVersion);
  std::string log_level = "warning";
  app.add_option("--log-level", log_level, "What to log to standard error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
  app.require_subcommand(1);
  app.fallthrough();
  app.set_help_all_flag("--help-all", "Help of all commands");

  Action action;
  AddGenerateCommand(app, action);
  AddChatCommand(app, action);
  AddServeCommand(app, action);
  AddTokenizeCommand(app, action);
  AddTemplateCommand(app, action);
  AddLogitsCommand(app, action);
  AddSynthCommand(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // 0 for --help and --version; every mistake in the arguments is one status.
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  spdlog::set_level(spdlog::level::from_str(log_level));
  return action();
}
