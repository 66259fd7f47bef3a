// fathom generate: one prompt, one answer.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "chat/json_value.h"
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
  std::string prompt;
  std::string file;
  std::string messages_file;
  std::string system;
  std::string thinking = "off";
  bool raw = false;
  bool json = false;
  bool quiet = false;
  int64_t max_tokens = 2048;
  int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  int logprobs = -1;
};

struct Prompt {
  std::vector<TokenId> ids;
  std::optional<OutputState> start;  // none: raw text
};

Result<Prompt> EncodeChat(const JsonValue& body, const TextFrontEnd& front_end) {
  ChatPrompt chat;
  if (const auto error = front_end.PrepareChat(body, {}, &chat))
    return InvalidArgument(error->message);
  if (chat.wants_long_context) {
    spdlog::warn("effort max is made for a context of at least 393216 tokens");
  }
  return Prompt{std::move(chat.ids), chat.start};
}

Result<Prompt> EncodePrompt(const Options& o, const TextFrontEnd& front_end) {
  if (!o.messages_file.empty()) {
    FATHOM_ASSIGN_OR_RETURN(const std::string json, ReadInput(o.messages_file));
    FATHOM_ASSIGN_OR_RETURN(const JsonValue body, ChatBodyFromMessages(json, o.thinking));
    return EncodeChat(body, front_end);
  }
  std::string text = o.prompt;
  if (!o.file.empty()) {
    FATHOM_ASSIGN_OR_RETURN(text, ReadInput(o.file));
  }
  if (o.raw) {
    Prompt prompt;
    FATHOM_ASSIGN_OR_RETURN(prompt.ids, front_end.EncodePrompt(text, /*add_special_tokens=*/true));
    if (prompt.ids.empty()) return InvalidArgument("the prompt is empty");
    return prompt;
  }
  std::vector<ChatTurn> turns;
  if (!o.system.empty()) turns.push_back({"system", o.system, {}});
  turns.push_back({"user", std::move(text), {}});
  return EncodeChat(ChatBody(turns, o.thinking), front_end);
}

std::string OutcomeJson(const RequestOutcome& outcome, const TextFrontEnd& front_end, int logprobs,
                        bool raw) {
  nlohmann::ordered_json json;
  if (raw) {
    json["text"] = outcome.content;
  } else {
    json["reasoning"] = outcome.reasoning.empty() ? nlohmann::ordered_json()
                                                  : nlohmann::ordered_json(outcome.reasoning);
    json["content"] = outcome.content;
  }
  json["finish_reason"] = outcome.FinishName();
  json["stop_reason"] =
      outcome.stop_string ? nlohmann::ordered_json(*outcome.stop_string) : nlohmann::ordered_json();
  std::vector<TokenId> ids;
  for (const TokenEvent& event : outcome.tokens) ids.push_back(event.token);
  json["token_ids"] = ids;
  if (logprobs >= 0) {
    json["logprobs"] = nlohmann::ordered_json::array();
    const auto entry = [&](TokenId token, float logprob) {
      const std::string_view bytes = front_end.TokenBytes(token);
      return nlohmann::ordered_json{{"token", front_end.Decode({&token, 1}, false)},
                                    {"id", token},
                                    {"logprob", logprob},
                                    {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())}};
    };
    for (const TokenEvent& event : outcome.tokens) {
      nlohmann::ordered_json item = entry(event.token, event.logprob);
      item["top_logprobs"] = nlohmann::ordered_json::array();
      for (const TokenLogprob& top : event.top)
        item["top_logprobs"].push_back(entry(top.token, top.logprob));
      json["logprobs"].push_back(std::move(item));
    }
  }
  json["usage"] = {{"prompt_tokens", outcome.prompt_tokens},
                   {"completion_tokens", outcome.tokens.size()},
                   {"total_tokens", outcome.prompt_tokens + outcome.tokens.size()}};
  json["timing"] = {{"prefill_seconds", outcome.prefill_seconds},
                    {"decode_seconds", outcome.decode_seconds}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int Run(const Options& o) {
  auto engine = ToEngineOptions(o.model, o.cache);
  if (!engine.ok()) return Fail(engine.status());
  engine->max_num_seqs = 1;
  engine->prefix_caching = false;  // there is one request
  auto loaded = LoadedModel::Load(o.model.model, *engine);
  if (!loaded.ok()) return Fail(loaded.status());
  const TextFrontEnd& front_end = *loaded->front_end;
  auto prompt = EncodePrompt(o, front_end);
  if (!prompt.ok()) return Fail(prompt.status());

  GenerateRequest request;
  request.id = "generate";
  request.sampling = ToSamplingParams(o.sampling, loaded->sampling_defaults);
  const int64_t room =
      loaded->engine->info().max_model_len - static_cast<int64_t>(prompt->ids.size());
  if (room < 1) {
    return Fail(InvalidArgument("the prompt has " + std::to_string(prompt->ids.size()) +
                                " tokens, the maximum context length is " +
                                std::to_string(loaded->engine->info().max_model_len)));
  }
  request.max_tokens = std::min(o.max_tokens, room);
  request.min_tokens = o.min_tokens;
  request.ignore_eos = o.ignore_eos;
  request.num_logprobs = o.logprobs;
  request.prompt = std::move(prompt->ids);
  OutputOptions output;
  output.start = prompt->start;
  output.stop = o.stop;

  InterruptGuard interrupt;
  OutputDelta::Kind shown = OutputDelta::Kind::kContent;
  const auto print = [&](const OutputDelta& delta) {
    if (o.json) return;
    if (delta.kind != shown) {
      const bool to_reasoning = delta.kind == OutputDelta::Kind::kReasoning;
      if (HasStyles()) std::cout << (to_reasoning ? kDim : kReset);
      if (!to_reasoning) std::cout << "\n\n";
      shown = delta.kind;
    }
    // Nobody reads on (fathom generate | head): no use in going on.
    if (!(std::cout << delta.text << std::flush)) interrupt.flag().store(true);
  };
  auto outcome =
      RunRequest(*loaded->engine, front_end, std::move(request), output, print, interrupt.flag());
  if (shown == OutputDelta::Kind::kReasoning && HasStyles()) std::cout << kReset;
  if (!outcome.ok()) return Fail(outcome.status());
  if (o.json) {
    std::cout << OutcomeJson(*outcome, front_end, o.logprobs, o.raw) << "\n";
  } else {
    std::cout << std::endl;
    if (!o.quiet)
      std::cerr << "[" << outcome->Timing() << ", finish: " << outcome->FinishName() << "]\n";
  }
  return outcome->reason == FinishReason::kAborted ? kExitInterrupted : 0;
}

}  // namespace

void AddGenerateCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("generate", "Answer one prompt and exit");
  auto* prompt = command->add_option("prompt", o->prompt, "What to ask");
  auto* file =
      command->add_option("-f,--file", o->file, "Read the prompt from a file; - is standard input");
  auto* messages = command->add_option("--messages", o->messages_file,
                                       "JSON file with a list of messages or a whole chat request "
                                       "(its sampling fields are not read)");
  prompt->excludes(file)->excludes(messages);
  file->excludes(messages);
  auto* raw =
      command->add_flag("--raw", o->raw, "Complete the text as it is, without chat template");
  raw->excludes(messages);
  command->add_option("--system", o->system, "System message")->excludes(raw)->excludes(messages);
  AddThinkingOption(*command, o->thinking);
  command->add_option("-n,--max-tokens", o->max_tokens, "Longest answer, in tokens")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}))
      ->capture_default_str();
  command->add_option("--min-tokens", o->min_tokens, "Shortest answer, in tokens")
      ->check(CLI::Range(int64_t{0}, int64_t{INT32_MAX}));
  command->add_flag("--ignore-eos", o->ignore_eos, "Go on after the end token");
  command->add_option("--stop", o->stop,
                      "End the answer at this text (may be given several times)")
      ->allow_extra_args(false);  // the prompt may follow
  command
      ->add_option("--logprobs", o->logprobs,
                   "With --json: log-probabilities of this many likeliest tokens")
      ->check(CLI::Range(0, 20));
  command->add_flag("--json", o->json,
                    "Print one JSON object at the end instead of text as it comes");
  command->add_flag("-q,--quiet", o->quiet, "No timing line");
  AddSamplingOptions(*command, o->sampling);
  AddModelOptions(*command, o->model);
  AddCacheOptions(*command, o->cache);
  command->footer(
      "Examples:\n"
      "  fathom generate 'What is 17*19? Return only the final integer.'\n"
      "  fathom generate --thinking high --temperature 0 'Sort these words alphabetically: plum, "
      "apple, kiwi'\n"
      "  fathom generate --raw -n 40 'Once upon a time'\n"
      "  fathom generate --json --messages request.json");
  command->callback([o, prompt, file, messages, &action] {
    if (prompt->count() + file->count() + messages->count() == 0) {
      throw CLI::RequiredError("a prompt, --file or --messages");
    }
    if (o->logprobs >= 0 && !o->json) throw CLI::RequiresError("--logprobs", "--json");
    action = [o] { return Run(*o); };
  });
}

}  // namespace fathom::cli
