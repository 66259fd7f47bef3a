// Checkpoint: an opened model directory. Config, and every tensor as a view into a read-only
// mapping, or into a copy in memory after CopyToMemory().
//
// Open() maps the files (nothing is copied), parses the headers and checks names, shapes and dtypes
// against the geometry of config.json; all problems are listed at once. A damaged or hostile file
// ends in an error, never in a crash. Immutable after Open() and CopyToMemory(); any thread may
// read. Tensors stay valid as long as the Checkpoint, or until CopyToMemory().
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/synth_tensor.h"
#include "checkpoint/weight_memory.h"

namespace fathom {

struct CheckpointFile {
  std::filesystem::path path;
  uint64_t bytes = 0;  // of the file
  int num_tensors = 0;
};

class Checkpoint {
 public:
  // `directory` holds config.json and model.safetensors, or shards with
  // model.safetensors.index.json.
  static Result<Checkpoint> Open(const std::filesystem::path& directory);

  // The checkpoint that `fathom synth` would write for this config and seed, without files. Its
  // tensors have addresses, but only those of one dimension (norms, biases) have their bytes there;
  // the others read as zeros, take no memory, and are made by MakeTensors() or, elsewhere, from
  // SyntheticAt(). kOutOfMemory when there are no addresses for them.
  static Result<Checkpoint> Synthetic(const ModelConfig& config, uint64_t seed);
  [[nodiscard]] bool is_synthetic() const;
  // What the tensor is made of whose data begins at `data`; nothing where that is no tensor of a
  // synthetic checkpoint whose bytes are missing.
  [[nodiscard]] std::optional<SyntheticTensor> SyntheticAt(const std::byte* data) const;
  // Makes all bytes of a synthetic checkpoint in its own memory, on all threads. The caller has
  // compared total_bytes() with the memory that is free.
  void MakeTensors(ThreadPool& pool,
                   const std::function<void(uint64_t done, uint64_t total)>& progress);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  // As in config.json, except that mtp_compress_ratios is empty when the files hold no MTP block.
  [[nodiscard]] const ModelConfig& config() const;
  // By native name (docs/checkpoints.md); aliases are resolved. nullptr when there is no such
  // tensor. After Open() every tensor that config() needs is there with the right shape and dtype
  // (checkpoint/catalogue.h), and every expert id of the hash tables is in range.
  [[nodiscard]] const StoredTensor* Find(std::string_view name) const;
  // In order of name.
  [[nodiscard]] std::span<const StoredTensor> tensors() const;
  [[nodiscard]] uint64_t total_bytes() const;  // payload of tensors()
  [[nodiscard]] int num_files() const;
  // The files of weights, in order of name.
  [[nodiscard]] std::vector<CheckpointFile> files() const;
  // kDataLoss naming the files that lost bytes while they were mapped (another process truncated
  // them, the disk failed); their tensors then read as zeros, where the fault guard is installed
  // (base/fault_guard.h). To be asked after a computation, before its result is used.
  [[nodiscard]] Status CheckFiles() const;
  // Reads all files into the page cache and this process's page tables, so that the first token
  // does not wait for the disk. Calls progress(bytes done, bytes in all). Pointless when they
  // exceed free memory.
  void Preload(ThreadPool& pool,
               const std::function<void(uint64_t done, uint64_t total)>& progress) const;
  // Reads all tensors once into memory of this process (checkpoint/weight_memory.h) and closes the
  // files; what happens to them afterwards does not matter. To be called before anything keeps a
  // view. kDataLoss when a file lost bytes meanwhile, where the fault guard is installed, and
  // kOutOfMemory; the checkpoint is of no use after an error.
  Status CopyToMemory(ThreadPool& pool, const CopyOptions& options);
  // Of that memory, bytes in huge pages.
  [[nodiscard]] int64_t HugePageBytes() const;
  // One line per thing a user should know: what was skipped and why.
  [[nodiscard]] const std::vector<std::string>& notes() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom
