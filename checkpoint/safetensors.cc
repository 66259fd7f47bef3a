#include "checkpoint/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/problems.h"

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own reader
constexpr size_t kMaxRank = 8;

struct HeaderEntry {
  std::string name;
  std::optional<DType> dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
  bool has_offsets = false;
};

// Takes the header's events from the parser and accepts exactly the format's grammar; it stops at
// the first event that does not belong, so nothing is ever nested deeper than three levels.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  std::vector<HeaderEntry> entries;
  std::string error;  // why reading stopped

  bool start_object(size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        if (key_ == "__metadata__") {
          if (has_metadata_) return Fail("two __metadata__ entries");
          has_metadata_ = true;
          place_ = Place::kMetadata;
        } else {
          entries.emplace_back().name = key_;
          place_ = Place::kTensor;
        }
        return true;
      default:
        return Unexpected("an object");
    }
  }
  bool end_object() override {
    if (place_ == Place::kTensor) {
      const HeaderEntry& entry = entries.back();
      if (!entry.dtype) return Fail(Quoted(entry.name) + ": no dtype");
      if (!entry.has_shape) return Fail(Quoted(entry.name) + ": no shape");
      if (!entry.has_offsets) return Fail(Quoted(entry.name) + ": no data_offsets");
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || key_ != "dtype") return Unexpected("a string");
    HeaderEntry& entry = entries.back();
    if (entry.dtype) return Fail(Quoted(entry.name) + ": two dtypes");
    entry.dtype = DTypeFromName(value);
    if (!entry.dtype) {
      return Fail(Quoted(entry.name) + ": dtype " + Quoted(value) +
                  " is not one that fathom reads");
    }
    return true;
  }
  bool start_array(size_t) override {
    if (place_ != Place::kTensor) return Unexpected("an array");
    HeaderEntry& entry = entries.back();
    bool* seen = key_ == "shape"          ? &entry.has_shape
                 : key_ == "data_offsets" ? &entry.has_offsets
                                          : nullptr;
    if (seen == nullptr) return Unexpected("an array");
    if (*seen) return Fail(Quoted(entry.name) + ": two entries " + key_);
    *seen = true;
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }
  bool end_array() override {
    HeaderEntry& entry = entries.back();
    if (place_ == Place::kOffsets && entry.offsets.size() != 2) {
      return Fail(Quoted(entry.name) + ": data_offsets must be [begin, end]");
    }
    place_ = Place::kTensor;
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      HeaderEntry& entry = entries.back();
      if (entry.shape.size() == kMaxRank) return Fail(Quoted(entry.name) + ": too many dimensions");
      if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
        return Fail(Quoted(entry.name) + ": dimension " + std::to_string(value) + " is too large");
      }
      entry.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && entries.back().offsets.size() < 2) {
      entries.back().offsets.push_back(value);
      return true;
    }
    return Unexpected("a number");
  }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a number that is no 64-bit integer");
  }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool null() override { return Unexpected("null"); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const Json::exception&) override {
    return Fail("header is not well-formed JSON at byte " + std::to_string(position));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(std::string why) {
    error = std::move(why);
    return false;
  }
  bool Unexpected(const char* what) {
    return Fail("header: " + std::string(what) + " where the format has none, at key " +
                Quoted(key_));
  }

  Place place_ = Place::kStart;
  std::string key_;
  bool has_metadata_ = false;
};

uint64_t ReadLength(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i)
    length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return length;
}

// Offsets of each tensor against its shape and the file.
void CheckEntry(const HeaderEntry& entry, uint64_t data_begin, uint64_t data_bytes,
                Problems& problems) {
  const uint64_t begin = entry.offsets[0];
  const uint64_t end = entry.offsets[1];
  const std::string what = Quoted(entry.name) + ": data_offsets [" + std::to_string(begin) + ", " +
                           std::to_string(end) + "]";
  if (begin > end) return problems.Add(what + " end before they begin");
  if (end > data_bytes) {
    return problems.Add(what + " reach beyond the file, which has " + std::to_string(data_bytes) +
                        " bytes of data (truncated?)");
  }
  const auto bytes = TensorBytes(*entry.dtype, entry.shape);
  const std::string type = std::string(DTypeName(*entry.dtype)) + " " + ShapeText(entry.shape);
  if (!bytes) return problems.Add(Quoted(entry.name) + ": size of " + type + " overflows");
  if (*bytes != end - begin) {
    return problems.Add(what + " hold " + std::to_string(end - begin) + " bytes, " + type +
                        " needs " + std::to_string(*bytes));
  }
  if ((data_begin + begin) % static_cast<uint64_t>(DTypeBytes(*entry.dtype)) != 0) {
    problems.Add(what +
                 ": data is not aligned to its element size; rewrite the file with a current "
                 "safetensors library");
  }
}

// `entries` in order of offset must follow one another from the first to the last byte.
void CheckCoverage(const std::vector<const HeaderEntry*>& entries, uint64_t data_bytes,
                   Problems& problems) {
  uint64_t position = 0;
  for (const HeaderEntry* entry : entries) {
    const uint64_t begin = entry->offsets[0];
    if (begin != position) {
      problems.Add(Quoted(entry->name) + ": begins at " + std::to_string(begin) + ", " +
                   (begin < position ? "overlapping the tensor before it, which ends at "
                                     : "after a gap that starts at ") +
                   std::to_string(position));
    }
    position = std::max(position, entry->offsets[1]);
  }
  if (position != data_bytes) {
    problems.Add("the tensors end at byte " + std::to_string(position) +
                 " of the data, the file has " + std::to_string(data_bytes));
  }
}

}  // namespace

std::optional<uint64_t> TensorBytes(DType dtype, const std::vector<int64_t>& shape) {
  auto bytes = static_cast<uint64_t>(DTypeBytes(dtype));
  bool overflow = false;
  for (const int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    // Goes on after an overflow: a later zero makes the product zero all the same.
    overflow |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
    if (dim == 0) return 0;
  }
  return overflow ? std::nullopt : std::optional(bytes);
}

Result<std::vector<StoredTensor>> ParseSafetensors(std::span<const std::byte> file,
                                                   std::string_view source) {
  const std::string where = std::string(source) + ": ";
  if (file.size() < kLengthBytes) {
    return DataLoss(where + std::to_string(file.size()) + " bytes are too few for safetensors");
  }
  const uint64_t header_bytes = ReadLength(file);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - kLengthBytes) {
    return DataLoss(where + "header of " + std::to_string(header_bytes) + " bytes in a file of " +
                    std::to_string(file.size()) + " (truncated, or not safetensors)");
  }
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                                static_cast<size_t>(header_bytes));
  if (!header.starts_with('{')) return DataLoss(where + "header does not begin with {");
  // The JSON parser takes a NUL for the end of the text.
  if (header.find('\0') != header.npos) return DataLoss(where + "header holds a NUL byte");
  HeaderReader reader;
  if (!Json::sax_parse(header.begin(), header.end(), &reader))
    return DataLoss(where + reader.error);

  const uint64_t data_begin = kLengthBytes + header_bytes;
  const std::span<const std::byte> data = file.subspan(static_cast<size_t>(data_begin));
  Problems problems;
  std::vector<const HeaderEntry*> by_offset;
  by_offset.reserve(reader.entries.size());
  for (const HeaderEntry& entry : reader.entries) {
    CheckEntry(entry, data_begin, data.size(), problems);
    by_offset.push_back(&entry);
  }
  std::sort(by_offset.begin(), by_offset.end(),
            [](const HeaderEntry* a, const HeaderEntry* b) { return a->offsets < b->offsets; });
  CheckCoverage(by_offset, data.size(), problems);
  std::sort(reader.entries.begin(), reader.entries.end(),
            [](const HeaderEntry& a, const HeaderEntry& b) { return a.name < b.name; });
  for (size_t i = 1; i < reader.entries.size(); ++i) {
    if (reader.entries[i].name == reader.entries[i - 1].name) {
      problems.Add(Quoted(reader.entries[i].name) + ": stored twice");
    }
  }
  FATHOM_RETURN_IF_ERROR(problems.ToStatus(StatusCode::kDataLoss, source));

  std::vector<StoredTensor> tensors;
  tensors.reserve(reader.entries.size());
  for (HeaderEntry& entry : reader.entries) {
    const auto begin = static_cast<size_t>(entry.offsets[0]);
    const auto size = static_cast<size_t>(entry.offsets[1] - entry.offsets[0]);
    tensors.push_back(
        {std::move(entry.name), *entry.dtype, std::move(entry.shape), data.subspan(begin, size)});
  }
  return tensors;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  FATHOM_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  FATHOM_ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors,
                          ParseSafetensors(file.bytes(), path.string()));
  return SafetensorsFile(path, std::move(file), std::move(tensors));
}

const StoredTensor* SafetensorsFile::Find(std::string_view name) const {
  return FindTensor(tensors_, name);
}

const StoredTensor* FindTensor(std::span<const StoredTensor> sorted, std::string_view name) {
  const auto it = std::lower_bound(
      sorted.begin(), sorted.end(), name,
      [](const StoredTensor& tensor, std::string_view n) { return tensor.name < n; });
  return it == sorted.end() || it->name != name ? nullptr : &*it;
}

}  // namespace fathom
