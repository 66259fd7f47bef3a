// fathom tokenize: text to token ids and back.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/loaded_model.h"
#include "tokenizer/tokenizer.h"

namespace fathom::cli {
namespace {

struct Options {
  std::string model;
  std::string text;
  std::string file;
  bool decode = false;
  bool pieces = false;
  bool ignore_added = false;
};

int Run(const Options& o) {
  auto directory = ResolveModel(o.model, ModelNeed::kDirectory);
  if (!directory.ok()) return Fail(directory.status());
  auto tokenizer = Tokenizer::Load(*directory);
  if (!tokenizer.ok()) return Fail(tokenizer.status());
  std::string text = o.text;
  if (!o.file.empty()) {
    auto read = ReadInput(o.file);
    if (!read.ok()) return Fail(read.status());
    text = std::move(read).value();
  }
  if (o.decode) {
    auto ids = ParseTokenIds(text, tokenizer->vocab_size());
    if (!ids.ok()) return Fail(ids.status());
    std::cout << tokenizer->DecodeBytes(*ids, SpecialTokens::kKeep) << "\n";
    return 0;
  }
  auto ids = tokenizer->Encode(text, o.ignore_added ? AddedTokens::kIgnore : AddedTokens::kMatch);
  if (!ids.ok()) return Fail(ids.status());
  if (o.pieces) {
    for (TokenId id : *ids) {
      const nlohmann::json piece = std::string(tokenizer->TokenBytes(id));
      std::cout << id << "\t"
                << piece.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    }
  } else {
    std::cout << nlohmann::json(*ids).dump() << "\n";
  }
  return 0;
}

}  // namespace

void AddTokenizeCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", "Turn text into token ids, or ids into text");
  auto* text = command->add_option("text", o->text, "The text; with --decode, a JSON array of ids");
  auto* file =
      command->add_option("-f,--file", o->file, "Read it from a file; - is standard input");
  text->excludes(file);
  auto* decode = command->add_flag("-d,--decode", o->decode, "Ids to text");
  command->add_flag("--pieces", o->pieces, "One line per token: id, then its text as JSON")
      ->excludes(decode);
  command
      ->add_flag(
          "--ignore-added-tokens", o->ignore_added,
          "Treat spellings of control tokens as text, as chat requests do with what clients send")
      ->excludes(decode);
  AddModelOption(*command, o->model);
  command->footer(
      "Prints a JSON array of ids. The text is taken as it is: no begin token is added.\n"
      "Examples:\n"
      "  fathom tokenize 'Hello, world!'\n"
      "  fathom tokenize --decode '[19923, 14, 2058, 3]' --model DIR");
  command->callback([o, text, file, &action] {
    if (text->count() + file->count() == 0) throw CLI::RequiredError("text or --file");
    action = [o] { return Run(*o); };
  });
}

}  // namespace fathom::cli
