// ReplayModel: what `fathom serve --replay` runs in place of a model (docs/replay.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/status.h"
#include "cli/loaded_model.h"
#include "engine/request.h"
#include "replay/replay_engine.h"
#include "server/text_front_end.h"

namespace fathom::cli {

struct ReplayModelOptions {
  std::string file;           // "-": standard input
  int64_t max_model_len = 0;  // 0: the model's
  int max_num_seqs = 0;       // 0: no limit that matters
  int max_queued_requests = 1024;
  bool priority_scheduling = false;
};

struct ReplayModel {
  std::unique_ptr<TextFrontEnd> front_end;  // used by the engine, so it goes last
  std::unique_ptr<ReplayEngine> engine;
  SamplingParams sampling_defaults;

  // Of the model's directory only the tokenizer's files, generation_config.json and config.json are
  // read; the last two may be missing.
  static Result<ReplayModel> Load(const std::filesystem::path& directory,
                                  const ReplayModelOptions& options,
                                  const FrontEndOptions& front_end);
};

}  // namespace fathom::cli
