// Writing safetensors files whose tensors need not be in memory together.
//
// The layout is computed from names, types and shapes alone; then the bytes of any tensor may come
// in any order, from several threads. The file appears under its name only when it is complete.
// Tensors are stored in order of falling element size, then of name, so all are aligned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace fathom {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

struct SafetensorsLayout {
  struct Extent {
    uint64_t begin = 0;  // of the first byte in the file
    uint64_t bytes = 0;
  };
  std::string preamble;         // length and JSON header: everything in front of the data
  std::vector<Extent> extents;  // in the order of the specs
  uint64_t file_bytes = 0;
};

// kInvalidArgument when a name is given twice, reserved or not UTF-8, or when sizes do not fit a
// file (2^63 bytes). `source` names the file in messages.
Result<SafetensorsLayout> LayOutSafetensors(std::span<const TensorSpec> tensors,
                                            std::string_view source);

class SafetensorsWriter {
 public:
  // Creates `path`.partial and writes the header. kUnavailable for errors of the file system.
  static Result<SafetensorsWriter> Create(const std::filesystem::path& path,
                                          std::span<const TensorSpec> tensors);
  SafetensorsWriter(SafetensorsWriter&&) noexcept;
  SafetensorsWriter& operator=(SafetensorsWriter&&) noexcept;
  // Without a successful Finish() nothing is left on the disk.
  ~SafetensorsWriter();

  [[nodiscard]] const SafetensorsLayout& layout() const;
  // Writes a part of tensor `tensor` (index into the specs), `begin` bytes from its start. Every
  // byte is to be written once. Any thread; parts may come at the same time.
  Status Write(size_t tensor, uint64_t begin, std::span<const std::byte> data);
  // Renames the file. kInternal when bytes are missing.
  Status Finish();

 private:
  struct Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom
