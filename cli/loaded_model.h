// LoadedModel: everything that commands need to turn text into text.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "base/status.h"
#include "chat/chat_request.h"
#include "checkpoint/checkpoint.h"
#include "cli/command.h"
#include "engine/local_engine.h"
#include "server/text_front_end.h"

namespace fathom::cli {

// The directory meant by --model: as given, or where the bundled model is, beside the program or in
// the source tree that built it. kNotFound says where it looked.
Result<std::filesystem::path> ResolveModel(const std::string& model);

// The config of a bundled preset ("flash", "pro"). kNotFound lists them.
Result<std::filesystem::path> ResolvePreset(const std::string& name);

struct LoadedModel {
  std::filesystem::path directory;
  std::unique_ptr<LocalEngine> engine;
  std::unique_ptr<TextFrontEnd> front_end;
  SamplingParams sampling_defaults;  // of generation_config.json

  // Notes of the checkpoint and the tokenizer go to the log.
  static Result<LoadedModel> Load(const ModelOptions& options,
                                  const ChatDefaults& chat_defaults = {});
};

}  // namespace fathom::cli
