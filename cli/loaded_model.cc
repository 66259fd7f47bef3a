#include "cli/loaded_model.h"

#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <map>
#include <utility>

#include "chat/effort.h"
#include "checkpoint/generation_config.h"
#include "tokenizer/tokenizer.h"

namespace fathom::cli {
namespace {

constexpr const char* kBundledModel = "fathom-nano";

// Where models and presets come with the program. Installed: PREFIX/bin/fathom and
// PREFIX/share/fathom/models. Built: SOURCE/build/PRESET/bin/fathom.
std::array<std::filesystem::path, 2> ModelFolders() {
  std::error_code error;
  const std::filesystem::path bin =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  return {bin.parent_path() / "share" / "fathom" / "models",
          bin.parent_path().parent_path().parent_path() / "models"};
}

}  // namespace

Result<std::filesystem::path> ResolvePreset(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  // Names are compared rather than joined to a path: a preset is never a place elsewhere.
  std::map<std::string, fs::path> presets;
  for (const fs::path& models : ModelFolders()) {
    for (fs::directory_iterator it(models / "presets", error); it != fs::directory_iterator();
         it.increment(error)) {
      const fs::path& path = it->path();
      if (path.extension() == ".json") presets.emplace(path.stem().string(), path);
    }
  }
  if (const auto found = presets.find(name); found != presets.end()) return found->second;
  std::string known;
  for (const auto& [preset, path] : presets) known += (known.empty() ? "" : ", ") + preset;
  return NotFound("model '" + name + "': no such file or directory, and no preset (" +
                  (known.empty() ? "none found" : known) + ")");
}

Result<std::filesystem::path> ResolveModel(const std::string& model) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!model.empty()) {
    if (fs::is_directory(model, error)) return fs::path(model);
    return NotFound("model '" + model + "': no such directory");
  }
  std::string looked;
  for (const fs::path& models : ModelFolders()) {
    fs::path candidate = models / kBundledModel;
    if (fs::is_directory(candidate, error)) return candidate;
    looked += (looked.empty() ? "" : " or ") + candidate.string();
  }
  return NotFound("the bundled model is not at " + looked + "; name a model with --model");
}

Result<LoadedModel> LoadedModel::Load(const ModelOptions& options,
                                      const ChatDefaults& chat_defaults) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel loaded;
  FATHOM_ASSIGN_OR_RETURN(loaded.directory, ResolveModel(options.model));
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(loaded.directory));
  for (const std::string& note : checkpoint.notes()) spdlog::info("{}", note);
  FATHOM_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(loaded.directory));
  for (const std::string& warning : tokenizer.warnings()) spdlog::warn("{}", warning);
  if (tokenizer.vocab_size() > checkpoint.config().vocab_size) {
    return InvalidArgument(loaded.directory.string() + ": tokenizer.json has " +
                           std::to_string(tokenizer.vocab_size()) + " tokens, the model only " +
                           std::to_string(checkpoint.config().vocab_size));
  }
  FATHOM_ASSIGN_OR_RETURN(const GenerationConfig generation,
                          LoadGenerationConfig(loaded.directory));
  loaded.sampling_defaults.temperature = generation.temperature;
  loaded.sampling_defaults.top_p = generation.top_p;
  loaded.sampling_defaults.top_k = generation.top_k;

  ChatOptions chat;
  chat.defaults = chat_defaults;
  chat.effort_profile = DetectEffortProfileOf(loaded.directory);
  loaded.front_end = std::make_unique<TextFrontEnd>(std::move(tokenizer), std::move(chat));

  std::vector<TokenId> eos = generation.eos_token_ids.empty() ? checkpoint.config().eos_token_ids
                                                              : generation.eos_token_ids;
  LocalEngineOptions engine_options;
  engine_options.backend = options.backend;
  engine_options.num_threads = options.num_threads;
  engine_options.max_model_len = options.max_model_len;
  engine_options.max_batched_tokens = options.max_batched_tokens;
  const double megabytes = static_cast<double>(checkpoint.total_bytes()) / 1e6;
  const int files = checkpoint.num_files();
  FATHOM_ASSIGN_OR_RETURN(
      loaded.engine, LocalEngine::Create(std::move(checkpoint), std::move(eos), engine_options));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  spdlog::info("loaded {}: {:.1f} MB of weights mapped from {} file(s), backend {}, {:.2f} s",
               loaded.directory.filename().string(), megabytes, files, options.backend,
               took.count());
  return loaded;
}

}  // namespace fathom::cli
