// Checkpoint: an opened model directory. Config, and every tensor as a view into a read-only mapping.
//
// Open() maps the files (nothing is copied), parses the headers and checks names, shapes and dtypes
// against the geometry of config.json; all problems are listed at once. A damaged or hostile file ends
// in an error, never in a crash. Immutable after Open(); any thread may read. Tensors stay valid as
// long as the Checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "checkpoint/config.h"

namespace fathom {

struct StoredTensor {
  std::string name;  // native name (docs/checkpoints.md), aliases already resolved
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // little endian, row-major; may be unaligned in hostile files only
};

class Checkpoint {
 public:
  // `directory` holds config.json and model.safetensors, or shards with model.safetensors.index.json.
  static Result<Checkpoint> Open(const std::filesystem::path& directory);

  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;
  ~Checkpoint();

  [[nodiscard]] const ModelConfig& config() const;
  // nullptr when there is no such tensor. After Open() every tensor that the geometry needs is there
  // with the right shape and dtype.
  [[nodiscard]] const StoredTensor* Find(std::string_view name) const;
  // In order of name.
  [[nodiscard]] std::span<const StoredTensor> tensors() const;
  [[nodiscard]] uint64_t total_bytes() const;  // tensor payload
  [[nodiscard]] int num_files() const;
  // One line per thing a user should know: what was skipped and why.
  [[nodiscard]] const std::vector<std::string>& notes() const;

 private:
  struct Impl;
  explicit Checkpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom
