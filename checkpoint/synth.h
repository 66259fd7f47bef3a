// Synthetic checkpoints: random weights of any geometry in the official layout.
//
//   plan = PlanSyntheticCheckpoint(config text, options)   names, shards, sizes; no file is touched
//   WriteSyntheticCheckpoint(plan, directory, options, pool)
//
// Shards are arranged as published: the embedding, one per main layer, norm and head, one per MTP
// block; model.safetensors.index.json, config.json (written last: without it the directory is not
// yet a checkpoint) and generation_config.json beside them. Tensors stream to the disk: memory is
// one part of kSynthPartBytes per thread, whatever the model's size. The bytes of a tensor are a
// function of the geometry and the seed; threads and shard sizes do not change them
// (checkpoint/synth_tensor.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"
#include "checkpoint/synth_config.h"

namespace fathom {

inline constexpr size_t kSynthPartBytes = size_t{256} << 10;

struct SynthOptions {
  uint64_t seed = 1;
  // Layers above this are cut into several shards (a single tensor is not); 0: no limit.
  uint64_t max_shard_bytes = 0;
  // Replace the checkpoint that the directory holds. Otherwise it must be empty or not be there.
  bool overwrite = false;
  // Where tokenizer.json, and tokenizer_config.json where there is one, are copied from; empty: the
  // checkpoint has no tokenizer.
  std::filesystem::path tokenizer_directory;
  SynthDialect dialect;
  // Called on the calling thread every few ten megabytes, with bytes of tensors.
  std::function<void(uint64_t done, uint64_t total)> on_progress;
  const std::atomic<bool>* cancel = nullptr;  // looked at as often as on_progress is called
};

struct SynthShard {
  std::string file;
  std::vector<ExpectedTensor> tensors;  // native names
  uint64_t bytes = 0;                   // of the tensors
};

struct SynthPlan {
  ModelConfig config;
  std::string config_text;
  std::vector<SynthShard> shards;
  size_t num_tensors = 0;
  uint64_t total_bytes = 0;  // of the tensors
};

// `config_text` is a config.json in the published spelling; `source` names it in messages. Errors
// are those of ParseModelConfig, and kInvalidArgument for more than two million tensors.
Result<SynthPlan> PlanSyntheticCheckpoint(std::string_view config_text, std::string_view source,
                                          const SynthOptions& options);

// Creates `directory` where needed. After an error (kInvalidArgument for a directory in use,
// kUnavailable for a disk that is full or refuses, kCancelled) no file of the checkpoint is left.
Status WriteSyntheticCheckpoint(const SynthPlan& plan, const std::filesystem::path& directory,
                                const SynthOptions& options, ThreadPool& pool);

}  // namespace fathom
