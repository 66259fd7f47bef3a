// fathom template: messages to the prompt that the model sees.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "chat/chat_request.h"
#include "cli/chat_body.h"
#include "cli/command.h"
#include "cli/loaded_model.h"

namespace fathom::cli {
namespace {

struct Options {
  std::string model;
  std::string file = "-";
  std::string thinking = "high";
  std::string profile = "auto";
  bool ids = false;
  bool official_user_content = false;
};

int Run(const Options& o) {
  auto directory = ResolveModel(o.model, ModelNeed::kDirectory);
  if (!directory.ok()) return Fail(directory.status());
  auto json = ReadInput(o.file);
  if (!json.ok()) return Fail(json.status());
  auto body = ChatBodyFromMessages(*json, o.thinking);
  if (!body.ok()) return Fail(body.status());

  ChatOptions options;
  options.official_user_content = o.official_user_content;
  options.effort_profile = o.profile == "auto"   ? DetectEffortProfileOf(*directory)
                           : o.profile == "0731" ? EffortProfile::k0731
                                                 : EffortProfile::kPreview;
  if (!o.ids) {
    PreparedChat prepared;
    if (const auto error = PrepareChat(*body, options, prepared)) {
      return Fail(InvalidArgument(error->message));
    }
    std::cout << prepared.Text() << "\n";
    return 0;
  }
  auto tokenizer = Tokenizer::Load(*directory);
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  const TextFrontEnd front_end(std::move(tokenizer).value(), options);
  ChatPrompt prompt;
  if (const auto error = front_end.PrepareChat(*body, {}, &prompt)) {
    return Fail(InvalidArgument(error->message));
  }
  std::cout << nlohmann::json(prompt.ids).dump() << "\n";
  return 0;
}

}  // namespace

void AddTemplateCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("template", "Show the prompt that a chat request becomes");
  command
      ->add_option("file", o->file,
                   "JSON file with a list of messages or a whole chat request; - is standard input")
      ->capture_default_str();
  command->add_flag("--ids", o->ids, "Token ids as a JSON array instead of text");
  AddThinkingOption(*command, o->thinking);
  command
      ->add_option("--reasoning-effort-profile", o->profile,
                   "Texts for the efforts: of the preview checkpoints or of 0731 and later; auto "
                   "looks at the model")
      ->check(CLI::IsMember({"auto", "preview", "0731"}))
      ->capture_default_str();
  command->add_flag(
      "--official-user-content", o->official_user_content,
      "Let control tokens in what clients send take effect, as the official code does");
  AddModelOption(*command, o->model);
  command->footer("A request's own thinking fields win over --thinking.");
  command->callback([o, &action] { action = [o] { return Run(*o); }; });
}

}  // namespace fathom::cli
