// Which model is meant: a directory, a config.json, or a Hugging Face id in the local cache.
//
// Nothing is ever downloaded. An id that is not in the cache, or only in part, gives an error that
// says where it was looked for and which command fetches it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"

namespace fathom {

// What the caller will read.
enum class ModelNeed {
  kWeights,    // everything: a directory with weights, an id whose shards are all there
  kConfig,     // config.json at least
  kDirectory,  // other files, such as the tokenizer's; the reader says what is missing
};

struct ModelLocation {
  std::string name;                 // for people: "org/name", or the last part of the path
  std::filesystem::path config;     // config.json, or the .json file that was named
  std::filesystem::path directory;  // what else is there; empty when only a config was named
  bool has_weights = false;         // the directory has model.safetensors or an index of shards
};

// Where Hugging Face keeps downloads: HF_HUB_CACHE, else HF_HOME/hub, else
// XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub. Empty when none is known.
std::filesystem::path HubCacheFromEnvironment();

// `argument` is
//   - a directory,
//   - a .json file, for kConfig only,
//   - "org/name" or "org/name@revision" (branch, tag or commit; default main), looked up as
//     hub_cache/models--org--name/refs/<revision> -> snapshots/<commit>.
// What exists as a path is taken as one. kNotFound and kInvalidArgument say what to do.
Result<ModelLocation> LocateModel(const std::string& argument, ModelNeed need,
                                  const std::filesystem::path& hub_cache);

}  // namespace fathom
