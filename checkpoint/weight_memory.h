// Where weights lie while a model runs: in the mappings of their files, or copied into memory of
// this process, in huge pages if wanted and shared out between memory nodes.
//
// Values and functions; CopyTensors is called by the owner of the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/anonymous_memory.h"
#include "base/parallel.h"
#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace fathom {

enum class WeightsMode {
  kMmap,       // used in place: opens at once, one copy for all processes
  kCopy,       // read once into memory of the process
  kHugePages,  // the same in huge pages: fewer misses of the address translation
};
Result<WeightsMode> ParseWeightsMode(std::string_view text);  // "mmap", "copy", "hugepages"
std::string_view WeightsModeName(WeightsMode mode);

// Tensors behind each other in one memory.
struct WeightLayout {
  std::vector<size_t> offsets;  // one per tensor, ascending, multiples of 64
  size_t bytes = 0;
  // Pieces of whole pages that are copied in one go, in order; together they cover the memory.
  struct Chunk {
    size_t begin = 0;
    size_t end = 0;
    int node = 0;  // index into the placement's nodes
  };
  std::vector<Chunk> chunks;
};
// Of every tensor, node i has the bytes from PartBegin(size, i) on, so rows lie where the tasks of
// the same part run (base/parallel.h); a page goes to the node that has most of its bytes.
WeightLayout LayOutWeights(std::span<const size_t> sizes, size_t page_bytes,
                           const ThreadPlacement& placement);

struct CopyOptions {
  bool huge_pages = false;
  std::function<void(uint64_t done, uint64_t total)> progress;  // may be absent
  // How a thread asks for pages of a node; tests look at it.
  std::function<bool(int node)> take_pages_from = TakePagesFrom;
};
// Copies the tensors' data on all threads and points them to the copy, which is read-only.
// kOutOfMemory when there is no room for it; the caller has compared sizes before, because memory
// that is only promised ends the process when it is touched.
Result<AnonymousMemory> CopyTensors(std::span<StoredTensor> tensors, ThreadPool& pool,
                                    const CopyOptions& options);

}  // namespace fathom
