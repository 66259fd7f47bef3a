// LoadedModel: everything that commands need to turn text into text.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "chat/chat_request.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_path.h"
#include "cli/command.h"
#include "engine/local_engine.h"
#include "server/text_front_end.h"

namespace fathom::cli {

// The model meant by --model: a directory, for kConfig a .json file, or a Hugging Face id in the
// local cache (checkpoint/model_path.h); for "" the bundled one, beside the program or in the
// source tree that built it. kNotFound says where it looked.
Result<ModelLocation> FindModel(const std::string& model, ModelNeed need = ModelNeed::kWeights);
// The same with ids looked up in `hub_cache`.
Result<ModelLocation> FindModel(const std::string& model, ModelNeed need,
                                const std::filesystem::path& hub_cache);
// Its directory.
Result<std::filesystem::path> ResolveModel(const std::string& model,
                                           ModelNeed need = ModelNeed::kWeights);

// How a model is talked to, where that differs from what its files say.
struct FrontEndOptions {
  ChatDefaults chat_defaults;
  std::optional<EffortProfile> effort_profile;
  bool official_user_content = false;
  std::filesystem::path tokenizer_directory;  // empty: the model's
};

// What commands need of a model besides its weights.
struct ModelText {
  Tokenizer tokenizer;
  std::filesystem::path tokenizer_directory;
  ChatOptions chat;
  SamplingParams sampling_defaults;    // of generation_config.json
  std::vector<TokenId> eos_token_ids;  // its, may be empty

  // Warnings of the tokenizer go to the log.
  static Result<ModelText> Load(const std::filesystem::path& directory,
                                const FrontEndOptions& front_end);
};

struct LoadedModel {
  std::string name;  // for people, as ModelLocation::name
  std::filesystem::path directory;
  std::unique_ptr<LocalEngine> engine;
  std::unique_ptr<TextFrontEnd> front_end;
  SamplingParams sampling_defaults;  // of generation_config.json

  // Notes of the checkpoint, the tokenizer and the cache go to the log.
  static Result<LoadedModel> Load(const std::string& model, const LocalEngineOptions& options);
  static Result<LoadedModel> Load(const ModelLocation& location, const LocalEngineOptions& options,
                                  const FrontEndOptions& front_end);
};

}  // namespace fathom::cli
