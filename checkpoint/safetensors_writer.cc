#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "checkpoint/problems.h"
#include "checkpoint/safetensors.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

// Escapes only; bytes that are no UTF-8 stay as they are, so that accept() can find them.
std::string JsonString(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Indices of `tensors` in the order of the file; checks the names on the way.
Result<std::vector<size_t>> FileOrder(std::span<const TensorSpec> tensors,
                                      const std::string& where) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return tensors[a].name < tensors[b].name; });
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string& name = tensors[order[i]].name;
    if (name == "__metadata__" || (i > 0 && tensors[order[i - 1]].name == name)) {
      return InvalidArgument(where + Quoted(name) + ": name is given twice or reserved");
    }
    if (!Json::accept(JsonString(name))) {
      return InvalidArgument(where + Quoted(name) + ": name is not UTF-8");
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return DTypeBytes(tensors[a].dtype) > DTypeBytes(tensors[b].dtype);
  });
  return order;
}

std::string ErrnoText() { return std::generic_category().message(errno); }

}  // namespace

Result<SafetensorsLayout> LayOutSafetensors(std::span<const TensorSpec> tensors,
                                            std::string_view source) {
  constexpr uint64_t kMaxFile = std::numeric_limits<int64_t>::max();
  const std::string where = std::string(source) + ": ";
  FATHOM_ASSIGN_OR_RETURN(const std::vector<size_t> order, FileOrder(tensors, where));
  SafetensorsLayout layout;
  layout.extents.resize(tensors.size());
  // Other readers of the format look for this entry before they take the file for a model's.
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  uint64_t position = 0;
  for (const size_t i : order) {
    const TensorSpec& tensor = tensors[i];
    const std::optional<uint64_t> bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes || *bytes > kMaxFile - position) {
      return InvalidArgument(where + Quoted(tensor.name) + ": " + ShapeText(tensor.shape) +
                             " does not fit a file");
    }
    const uint64_t end = position + *bytes;
    header += "," + JsonString(tensor.name) + ":{\"dtype\":\"";
    header += DTypeName(tensor.dtype);
    header += "\",\"shape\":" + Json(tensor.shape).dump() + ",\"data_offsets\":[" +
              std::to_string(position) + "," + std::to_string(end) + "]}";
    layout.extents[i] = {position, *bytes};
    position = end;
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');  // data begins at a multiple of 8

  for (size_t i = 0; i < 8; ++i) {
    layout.preamble += static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  layout.preamble += header;
  if (position > kMaxFile - layout.preamble.size()) {
    return InvalidArgument(where + "the tensors do not fit a file");
  }
  for (SafetensorsLayout::Extent& extent : layout.extents) extent.begin += layout.preamble.size();
  layout.file_bytes = layout.preamble.size() + position;
  return layout;
}

struct SafetensorsWriter::Impl {
  std::filesystem::path path, partial;
  SafetensorsLayout layout;
  int fd = -1;
  // Relaxed: only counts; Finish() runs after the threads that wrote were joined by their loop.
  std::atomic<uint64_t> written{0};

  ~Impl() {
    if (fd < 0) return;
    ::close(fd);
    ::unlink(partial.c_str());
  }
  [[nodiscard]] Status Failed(const char* what) const {
    return Unavailable(path.string() + ": cannot " + what + ": " + ErrnoText());
  }
  Status WriteAt(uint64_t begin, const void* bytes, size_t size) {
    const auto* data = static_cast<const char*>(bytes);
    written.fetch_add(size, std::memory_order_relaxed);
    while (size > 0) {
      const ssize_t n = ::pwrite(fd, data, size, static_cast<off_t>(begin));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Failed("write");
      data += n;
      size -= static_cast<size_t>(n);
      begin += static_cast<uint64_t>(n);
    }
    return OkStatus();
  }
};

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::filesystem::path& path,
                                                    std::span<const TensorSpec> tensors) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->partial = path;
  impl->partial += ".partial";
  FATHOM_ASSIGN_OR_RETURN(impl->layout, LayOutSafetensors(tensors, path.string()));
  impl->fd = ::open(impl->partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (impl->fd < 0) return impl->Failed("create");
  const std::string& preamble = impl->layout.preamble;
  FATHOM_RETURN_IF_ERROR(impl->WriteAt(0, preamble.data(), preamble.size()));
  return SafetensorsWriter(std::move(impl));
}

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter::~SafetensorsWriter() = default;

const SafetensorsLayout& SafetensorsWriter::layout() const { return impl_->layout; }

Status SafetensorsWriter::Write(size_t tensor, uint64_t begin, std::span<const std::byte> data) {
  FATHOM_CHECK(tensor < impl_->layout.extents.size(), "no such tensor");
  const SafetensorsLayout::Extent& extent = impl_->layout.extents[tensor];
  FATHOM_CHECK(begin <= extent.bytes && data.size() <= extent.bytes - begin,
               "a part must lie in its tensor");
  return impl_->WriteAt(extent.begin + begin, data.data(), data.size());
}

Status SafetensorsWriter::Finish() {
  Impl& file = *impl_;
  if (const uint64_t written = file.written.load(std::memory_order_relaxed);
      written != file.layout.file_bytes) {
    return Internal(file.path.string() + ": " + std::to_string(written) + " of " +
                    std::to_string(file.layout.file_bytes) + " bytes were written");
  }
  Status status;
  // Some file systems report a full disk only now.
  if (::close(std::exchange(file.fd, -1)) != 0) status = file.Failed("write");
  if (status.ok() && ::rename(file.partial.c_str(), file.path.c_str()) != 0) {
    status = file.Failed("rename");
  }
  if (!status.ok()) ::unlink(file.partial.c_str());
  return status;
}

Status WriteSafetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) {
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes || *bytes != tensor.data.size()) {
      return InvalidArgument(path.string() + ": " + Quoted(tensor.name) + ": " +
                             std::to_string(tensor.data.size()) + " bytes of data do not fill " +
                             std::string(DTypeName(tensor.dtype)) + " " + ShapeText(tensor.shape));
    }
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  FATHOM_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, specs));
  for (size_t i = 0; i < tensors.size(); ++i) {
    FATHOM_RETURN_IF_ERROR(writer.Write(i, 0, tensors[i].data));
  }
  return writer.Finish();
}

}  // namespace fathom
