// Safetensors files: a header with names, dtypes, shapes and offsets, then the tensors' bytes.
//
//   8 bytes   length N of the header, little endian
//   N bytes   JSON object: name -> {dtype, shape, data_offsets [begin, end)}, and "__metadata__"
//   rest      data; offsets count from here
//
// The reader trusts nothing: every size is checked against the file before it is used, the tensors
// must cover the data without gap or overlap (a rule of the format), and each must begin at a
// multiple of its element size (a rule of ours: data is used in place). Memory stays in proportion
// to the file. Values and immutable objects; any thread may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/mapped_file.h"
#include "base/status.h"

namespace fathom {

struct StoredTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // little endian, row-major, aligned to its element size
};

// Bytes of a tensor; nothing when a dimension is negative or the product does not fit 64 bits.
std::optional<uint64_t> TensorBytes(DType dtype, const std::vector<int64_t>& shape);

// The tensors of the file whose bytes are `file`, in order of name; their data points into it, so
// it must be aligned to 8 bytes. `source` names it in messages. kDataLoss for damage.
Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                   std::string_view source);

// A file that is mapped and parsed. Tensors live as long as the object.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> Open(const std::filesystem::path& path);

  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const StoredTensor* Find(std::string_view name) const;  // nullptr: no such tensor
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] uint64_t file_bytes() const { return file_.bytes().size(); }
  // Whether the file lost bytes while it was mapped (base/mapped_file.h).
  [[nodiscard]] bool damaged() const { return file_.damaged(); }

 private:
  SafetensorsFile(std::filesystem::path path, MappedFile file, std::vector<StoredTensor> tensors)
      : path_(std::move(path)), file_(std::move(file)), tensors_(std::move(tensors)) {}
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<StoredTensor> tensors_;
};

// The tensor called `name` among `sorted` (by name); nullptr when there is none.
const StoredTensor* FindTensor(std::span<const StoredTensor> sorted, std::string_view name);

// Writes a file that any reader of the format takes. Data goes from the spans to the file without a
// copy of the whole; tensors are stored in order of falling element size, so all are aligned. The
// file appears under its name only when it is complete. kInvalidArgument when a span does not fit
// its shape or a name is given twice or is not UTF-8.
Status WriteSafetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors);

}  // namespace fathom
