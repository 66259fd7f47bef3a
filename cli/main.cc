// The `fathom` program: parses the command line and runs one command.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <utility>

#include "base/fault_guard.h"
#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/log_format.h"
#include "cli/version.h"

namespace {

std::string UsageMessage(const CLI::App* app, const CLI::Error& error) {
  std::string command;
  for (auto chosen = app->get_subcommands(); !chosen.empty();
       chosen = chosen.front()->get_subcommands()) {
    command += " " + chosen.front()->get_name();
  }
  return "fathom: " + std::string(error.what()) + "\nRun 'fathom" + command +
         " --help' for what it takes.\n";
}

void AddLogLevelOption(CLI::App& command, std::string& log_level) {
  command
      .add_option("--log-level", log_level,
                  "What to log to standard error (default: warning; serve: info)")
      ->transform(CLI::IsMember(
          std::vector<std::string>{"trace", "debug", "info", "warning", "error", "critical", "off"},
          CLI::ignore_case))
      ->group("Logging");
}

// The word "serve" where it is the command; options of the program itself may stand before it.
std::vector<std::string>::const_iterator FindServe(const std::vector<std::string>& words) {
  auto word = words.begin();
  while (word != words.end() && word->rfind('-', 0) == 0) {
    const bool takes_next = *word == "--log-level" || *word == "--log_level";
    word += takes_next && word + 1 != words.end() ? 2 : 1;
  }
  return word != words.end() && *word == "serve" ? word : words.end();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fathom::cli;  // NOLINT(google-build-using-namespace): this is the program itself
  // Writing to a pipe that closed is an error of one write, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  // Weights are mapped files; one that is truncated under us is an error of what reads it.
  fathom::InstallFaultGuard();
  StartLog();

  CLI::App app("fathom: DeepSeek-V4 inference without Python", "fathom");
  app.set_version_flag("--version", std::string("fathom ") + kVersion);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "Help of all commands");
  app.failure_message(UsageMessage);

  Action action;
  AddGenerateCommand(app, action);
  AddChatCommand(app, action);
  const PrepareArguments prepare_serve = AddServeCommand(app, action);
  AddTokenizeCommand(app, action);
  AddTemplateCommand(app, action);
  AddParseCommand(app, action);
  AddLogitsCommand(app, action);
  AddInspectCommand(app, action);
  AddPlanCommand(app, action);
  AddSynthCommand(app, action);
  AddBenchCommand(app, action);
  std::string log_level;
  AddLogLevelOption(app, log_level);
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    AddLogLevelOption(*command, log_level);
    for (CLI::App* part : command->get_subcommands(nullptr)) AddLogLevelOption(*part, log_level);
  }

  if (argc < 2) {
    std::cerr << app.help();
    return kExitUsage;
  }
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto serve = FindServe(words);
  auto arguments = NormalizeArguments(app, {words.begin(), serve});
  if (!arguments.ok()) {
    std::cerr << "fathom: " << arguments.status().message() << "\n";
    return kExitUsage;
  }
  if (serve != words.end()) {
    const PreparedArguments prepared = prepare_serve({serve + 1, words.end()});
    if (prepared.exit_status) return *prepared.exit_status;
    arguments->insert(arguments->end(), prepared.arguments.begin(), prepared.arguments.end());
  }
  try {
    std::reverse(arguments->begin(), arguments->end());  // the parser takes them from the back
    app.parse(std::move(*arguments));
  } catch (const CLI::ParseError& error) {
    // 0 for --help and --version; every mistake in the arguments is one status.
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  // A server tells its operator what it does; the other commands only what is wrong.
  if (log_level.empty()) log_level = app.got_subcommand("serve") ? "info" : "warning";
  spdlog::set_level(spdlog::level::from_str(log_level));
  const int status = action();
  // A full disk or a pipe that closed must not look like success.
  if (!std::cout.flush() && status == 0)
    return Fail(fathom::Unavailable("cannot write standard output"));
  return status;
}
