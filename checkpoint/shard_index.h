// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace fathom {

struct ShardIndex {
  struct Entry {
    std::string tensor;  // as spelled in the file
    int shard = 0;       // index into `shards`
  };
  std::vector<std::string> shards;      // file names, sorted; plain names inside the directory
  std::vector<Entry> entries;           // in order of tensor
  std::optional<uint64_t> total_bytes;  // metadata.total_size where given
};

// kDataLoss for anything but the format, names of shards that leave the directory included.
Result<ShardIndex> ParseShardIndex(std::string_view json, std::string_view source);

// Names what the index and the shards' own headers (in order of index.shards) do not agree on.
Status CompareWithShards(const ShardIndex& index, std::span<const SafetensorsFile> shards,
                         std::string_view source);

}  // namespace fathom
