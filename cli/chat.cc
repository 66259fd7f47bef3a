// fathom chat: a conversation in the terminal.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/chat_body.h"
#include "cli/command.h"
#include "cli/loaded_model.h"
#include "cli/run_request.h"
#include "cli/terminal.h"

namespace fathom::cli {
namespace {

struct Options {
  ModelOptions model;
  CacheOptions cache;
  SamplingOptions sampling;
  std::string system;
  std::string thinking = "off";
  bool hide_reasoning = false;
  int64_t max_tokens = 2048;
};

constexpr const char* kHelp =
    "/thinking off|high|max  how much to think from now on\n"
    "/system TEXT            new system message; begins a new conversation\n"
    "/clear                  begin a new conversation\n"
    "/help                   this text\n"
    "/exit                   leave (so does Ctrl-D)\n"
    "Ctrl-C stops an answer; what came of it stays in the conversation.\n";

class Conversation {
 public:
  Conversation(const Options& options, LoadedModel& model)
      : options_(options), model_(model), thinking_(options.thinking) {
    SetSystem(options.system);
  }

  // A line that starts with '/'. False: leave.
  bool Command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string value = space == std::string::npos ? "" : line.substr(space + 1);
    if (name == "/exit" || name == "/quit") return false;
    if (name == "/help") {
      std::cout << kHelp;
    } else if (name == "/clear") {
      SetSystem(system_);
      std::cout << "(new conversation)\n";
    } else if (name == "/system") {
      SetSystem(value);
      std::cout << "(new conversation)\n";
    } else if (name == "/thinking" && (value == "off" || value == "high" || value == "max")) {
      thinking_ = value;
      std::cout << "(thinking: " << value << ")\n";
    } else {
      std::cout << "Not a command: " << line << "\n" << kHelp;
    }
    return true;
  }

  // One user turn and its answer. On an error the turn is taken back.
  void Say(const std::string& text, const InterruptGuard& interrupt) {
    turns_.push_back({"user", text, {}});
    if (const Status status = Answer(interrupt); !status.ok()) {
      turns_.pop_back();
      Fail(status);
    }
  }

 private:
  void SetSystem(const std::string& text) {
    system_ = text;
    turns_.clear();
    if (!text.empty()) turns_.push_back({"system", text, {}});
  }

  Status Answer(const InterruptGuard& interrupt) {
    ChatPrompt prompt;
    if (const auto error =
            model_.front_end->PrepareChat(ChatBody(turns_, thinking_), {}, &prompt)) {
      return InvalidArgument(error->message);
    }
    const int64_t room =
        model_.engine->info().max_model_len - static_cast<int64_t>(prompt.ids.size());
    if (room < 1) {
      return InvalidArgument("the conversation fills the context of " +
                             std::to_string(model_.engine->info().max_model_len) +
                             " tokens; /clear begins a new one");
    }
    GenerateRequest request;
    request.id = "chat";
    request.sampling = ToSamplingParams(options_.sampling, model_.sampling_defaults);
    request.max_tokens = std::min(options_.max_tokens, room);
    request.prompt = std::move(prompt.ids);
    OutputOptions output;
    output.start = prompt.start;

    OutputDelta::Kind shown = OutputDelta::Kind::kContent;
    const auto print = [&](const OutputDelta& delta) {
      const bool reasoning = delta.kind == OutputDelta::Kind::kReasoning;
      if (reasoning && options_.hide_reasoning) return;
      if (delta.kind != shown) {
        if (HasStyles()) std::cout << (reasoning ? kDim : kReset);
        if (!reasoning) std::cout << "\n\n";
        shown = delta.kind;
      }
      if (!(std::cout << delta.text << std::flush)) interrupt.flag().store(true);
    };
    auto outcome = RunRequest(*model_.engine, *model_.front_end, std::move(request), output, print,
                              interrupt.flag());
    if (shown == OutputDelta::Kind::kReasoning && HasStyles()) std::cout << kReset;
    std::cout << std::endl;
    FATHOM_RETURN_IF_ERROR(outcome.status());
    if (outcome->reason == FinishReason::kAborted) std::cout << "(stopped)\n";
    if (outcome->reason == FinishReason::kLength)
      std::cout << "(cut at --max-tokens or the context)\n";
    turns_.push_back({"assistant", outcome->content, outcome->reasoning});
    return OkStatus();
  }

  const Options& options_;
  LoadedModel& model_;
  std::string thinking_;
  std::string system_;
  std::vector<ChatTurn> turns_;
};

int Run(const Options& o) {
  auto engine = ToEngineOptions(o.model, o.cache);
  if (!engine.ok()) return Fail(engine.status());
  engine->max_num_seqs = 1;
  auto loaded = LoadedModel::Load(o.model.model, *engine);
  if (!loaded.ok()) return Fail(loaded.status());
  Conversation conversation(o, *loaded);
  std::cout << "Chat with " << loaded->name << ". /help lists commands.\n";
  InterruptGuard interrupt;  // for all turns: between two guards Ctrl-C would end the program
  while (true) {
    // Before the prompt: a Ctrl-C after it is meant for the line.
    interrupt.Clear();
    if (!(std::cout << "\n> " << std::flush)) break;
    std::string line;
    const LineResult result = ReadLine(line);
    if (result == LineResult::kEnd) break;
    if (result == LineResult::kInterrupted || line.empty()) continue;
    if (line.front() == '/') {
      if (!conversation.Command(line)) break;
    } else {
      conversation.Say(line, interrupt);
    }
  }
  std::cout << std::endl;
  return 0;
}

}  // namespace

void AddChatCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("chat", "Talk with a model in the terminal");
  command->add_option("--system", o->system, "System message");
  AddThinkingOption(*command, o->thinking);
  command->add_flag("--hide-reasoning", o->hide_reasoning, "Show answers only");
  command->add_option("-n,--max-tokens", o->max_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}))
      ->capture_default_str();
  AddSamplingOptions(*command, o->sampling);
  AddModelOptions(*command, o->model);
  AddCacheOptions(*command, o->cache);
  command->footer(std::string("In the conversation:\n") + kHelp);
  command->callback([o, &action] { action = [o] { return Run(*o); }; });
}

}  // namespace fathom::cli
