#include "cli/replay_model.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "chat/markers.h"
#include "checkpoint/config.h"
#include "cli/command.h"
#include "cli/loaded_model.h"

namespace fathom::cli {
namespace {

constexpr int64_t kDefaultModelLen = int64_t{1} << 20;  // where no config.json says it
constexpr int kUnlimitedSeqs = 1 << 20;

}  // namespace

Result<ReplayModel> ReplayModel::Load(const std::filesystem::path& directory,
                                      const ReplayModelOptions& options,
                                      const FrontEndOptions& front_end) {
  FATHOM_ASSIGN_OR_RETURN(ModelText text, ModelText::Load(directory, front_end));
  FATHOM_ASSIGN_OR_RETURN(const std::string json, ReadInput(options.file));
  FATHOM_ASSIGN_OR_RETURN(ReplayScript script,
                          ParseReplayScript(json, options.file, text.tokenizer));

  ReplayEngineOptions engine;
  engine.info.max_model_len = kDefaultModelLen;
  engine.info.eos_token_ids = std::move(text.eos_token_ids);
  std::error_code error;
  if (std::filesystem::exists(directory / "config.json", error)) {
    FATHOM_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(directory));
    engine.info.max_model_len = config.max_position_embeddings;
    if (engine.info.eos_token_ids.empty()) engine.info.eos_token_ids = config.eos_token_ids;
  }
  if (engine.info.eos_token_ids.empty()) {
    if (const auto eos = text.tokenizer.FindAddedToken(markers::kEos)) {
      engine.info.eos_token_ids.push_back(*eos);
    }
  }
  if (options.max_model_len > engine.info.max_model_len) {
    return InvalidArgument("max-model-len " + std::to_string(options.max_model_len) +
                           " is beyond the model's " + std::to_string(engine.info.max_model_len) +
                           " positions");
  }
  if (options.max_model_len > 0) engine.info.max_model_len = options.max_model_len;
  engine.info.vocab_size = text.tokenizer.vocab_size();
  engine.info.priority_scheduling = options.priority_scheduling;
  engine.max_num_seqs = options.max_num_seqs > 0 ? options.max_num_seqs : kUnlimitedSeqs;
  engine.max_queued_requests = options.max_queued_requests;

  ReplayModel model;
  model.sampling_defaults = text.sampling_defaults;
  model.front_end = std::make_unique<TextFrontEnd>(std::move(text.tokenizer), std::move(text.chat));
  engine.decode = [front_end = model.front_end.get()](std::span<const TokenId> ids) {
    return front_end->Decode(ids, false);
  };
  const size_t num_answers = script.answers.size();
  FATHOM_ASSIGN_OR_RETURN(model.engine, ReplayEngine::Create(std::move(script), std::move(engine)));
  spdlog::info("replay: {} answer(s) of {}; nothing is computed", num_answers, options.file);
  return model;
}

}  // namespace fathom::cli
