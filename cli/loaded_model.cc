#include "cli/loaded_model.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "chat/effort.h"
#include "checkpoint/generation_config.h"
#include "cli/numbers.h"
#include "cli/preset.h"
#include "cli/progress.h"
#include "cli/weights_lines.h"
#include "tokenizer/tokenizer.h"

namespace fathom::cli {
namespace {

// What the cache can hold, and how much of a prompt it can spare.
void DescribeCache(const LocalEngine& engine) {
  const EngineStats stats = engine.stats();
  const CacheSize& size = engine.cache_size();
  if (!size.note.empty()) spdlog::warn("cache: {}", size.note);
  spdlog::info("cache: {} in {} slabs, room for {} sequence(s) of {} tokens",
               HumanBytes(size.num_slabs * size.slab_bytes), stats.num_slabs,
               WithCommas(size.num_sequences), WithCommas(size.max_model_len));
  if (const std::optional<MemoryState>& device = engine.device_memory()) {
    spdlog::info("{}: {} of {} in use", device->name,
                 HumanBytes(device->total_bytes - device->free_bytes),
                 HumanBytes(device->total_bytes));
  }
  if (engine.prefix_caching()) {
    spdlog::info(
        "prefix cache: on; a prompt continues at the exact token where an earlier one ended, or at "
        "a block of {} tokens where one was kept",
        kBlockPositions);
  } else {
    spdlog::info("prefix cache: off");
  }
}

// Which steps a backend that records some does again.
void DescribeGraphs(const LocalEngine& engine) {
  const std::optional<GraphOptions> graphs = engine.graphs();
  if (!graphs) return;
  if (graphs->mode != GraphMode::kNone && graphs->sizes.empty()) {
    spdlog::warn("recorded steps: none, all sizes are above --max-num-batched-tokens");
  } else if (graphs->mode == GraphMode::kNone) {
    spdlog::info("recorded steps: {}", GraphModeName(graphs->mode));
  } else {
    spdlog::info("recorded steps: {}, of up to {} tokens", GraphModeName(graphs->mode),
                 graphs->sizes.back());
  }
}

}  // namespace

Result<ModelLocation> FindModel(const std::string& model, ModelNeed need) {
  return FindModel(model, need, HubCacheFromEnvironment());
}

Result<ModelLocation> FindModel(const std::string& model, ModelNeed need,
                                const std::filesystem::path& hub_cache) {
  namespace fs = std::filesystem;
  if (!model.empty()) return LocateModel(model, need, hub_cache);
  std::error_code error;
  std::string looked;
  for (const fs::path& models : ModelFolders()) {
    fs::path candidate = models / kBundledModel;
    if (fs::is_directory(candidate, error)) return LocateModel(candidate.string(), need, {});
    looked += (looked.empty() ? "" : " or ") + candidate.string();
  }
  return NotFound("the bundled model is not at " + looked + "; name a model with --model");
}

Result<std::filesystem::path> ResolveModel(const std::string& model, ModelNeed need) {
  FATHOM_ASSIGN_OR_RETURN(const ModelLocation location, FindModel(model, need));
  return location.directory;
}

Result<ModelText> ModelText::Load(const std::filesystem::path& directory,
                                  const FrontEndOptions& front_end) {
  const std::filesystem::path tokenizer_directory =
      front_end.tokenizer_directory.empty() ? directory : front_end.tokenizer_directory;
  FATHOM_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(tokenizer_directory));
  for (const std::string& warning : tokenizer.warnings()) spdlog::warn("{}", warning);
  FATHOM_ASSIGN_OR_RETURN(GenerationConfig generation, LoadGenerationConfig(directory));
  ModelText text{
      std::move(tokenizer), tokenizer_directory, {}, {}, std::move(generation.eos_token_ids)};
  text.chat.defaults = front_end.chat_defaults;
  text.chat.effort_profile =
      front_end.effort_profile ? *front_end.effort_profile : DetectEffortProfileOf(directory);
  text.chat.official_user_content = front_end.official_user_content;
  text.sampling_defaults.temperature = generation.temperature;
  text.sampling_defaults.top_p = generation.top_p;
  text.sampling_defaults.top_k = generation.top_k;
  return text;
}

Result<LoadedModel> LoadedModel::Load(const std::string& model, const LocalEngineOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(const ModelLocation location, FindModel(model));
  return Load(location, options, {});
}

Result<LoadedModel> LoadedModel::Load(const ModelLocation& location,
                                      const LocalEngineOptions& options,
                                      const FrontEndOptions& front_end) {
  const auto start = std::chrono::steady_clock::now();
  LoadedModel loaded;
  loaded.name = location.name;
  loaded.directory = location.directory;
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(loaded.directory));
  for (const std::string& note : checkpoint.notes()) spdlog::info("{}", note);
  FATHOM_ASSIGN_OR_RETURN(ModelText text, ModelText::Load(loaded.directory, front_end));
  if (text.tokenizer.vocab_size() > checkpoint.config().vocab_size) {
    return InvalidArgument(text.tokenizer_directory.string() + ": tokenizer.json has " +
                           std::to_string(text.tokenizer.vocab_size()) +
                           " tokens, the model only " +
                           std::to_string(checkpoint.config().vocab_size));
  }
  loaded.sampling_defaults = text.sampling_defaults;
  loaded.front_end =
      std::make_unique<TextFrontEnd>(std::move(text.tokenizer), std::move(text.chat));

  std::vector<TokenId> eos = text.eos_token_ids.empty() ? checkpoint.config().eos_token_ids
                                                        : std::move(text.eos_token_ids);
  {
    const bool copies = options.weights != WeightsMode::kMmap || options.backend == "cuda";
    ProgressBar progress(copies ? "copying weights" : "reading weights");
    LocalEngineOptions with_progress = options;
    with_progress.load_progress = [&](uint64_t done, uint64_t total) {
      progress.Update(done, total);
    };
    FATHOM_ASSIGN_OR_RETURN(
        loaded.engine, LocalEngine::Create(std::move(checkpoint), std::move(eos), with_progress));
  }
  LogWeights(loaded.engine->weights());
  DescribeCache(*loaded.engine);
  DescribeGraphs(*loaded.engine);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  spdlog::info("loaded {}: {} backend, up to {} tokens, {:.2f} s", loaded.name, options.backend,
               loaded.engine->info().max_model_len, took.count());
  return loaded;
}

}  // namespace fathom::cli
