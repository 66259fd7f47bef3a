#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

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

Status CheckTensor(const StoredTensor& tensor, const std::string& where) {
  const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (bytes && *bytes == tensor.data.size()) return OkStatus();
  return InvalidArgument(where + Quoted(tensor.name) + ": " + std::to_string(tensor.data.size()) +
                         " bytes of data do not fill " + std::string(DTypeName(tensor.dtype)) +
                         " " + ShapeText(tensor.shape));
}

// The JSON header, padded so that data begins at a multiple of 8.
std::string HeaderText(const std::vector<const StoredTensor*>& tensors) {
  std::string text = "{";
  uint64_t position = 0;
  for (const StoredTensor* tensor : tensors) {
    const uint64_t end = position + tensor->data.size();
    if (text.size() > 1) text += ",";
    text += JsonString(tensor->name) + ":{\"dtype\":\"";
    text += DTypeName(tensor->dtype);
    text += "\",\"shape\":" + Json(tensor->shape).dump() + ",\"data_offsets\":[" +
            std::to_string(position) + "," + std::to_string(end) + "]}";
    position = end;
  }
  text += "}";
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

Status WriteAll(const std::filesystem::path& path, const std::string& header,
                const std::vector<const StoredTensor*>& tensors) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  std::array<char, 8> length{};
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  out.write(length.data(), static_cast<std::streamsize>(length.size()));
  out.write(header.data(), static_cast<std::streamsize>(header.size()));
  for (const StoredTensor* tensor : tensors) {
    out.write(reinterpret_cast<const char*>(tensor->data.data()),
              static_cast<std::streamsize>(tensor->data.size()));
  }
  out.close();
  if (!out) return Unavailable(path.string() + ": cannot write");
  return OkStatus();
}

}  // namespace

Status WriteSafetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors) {
  const std::string where = path.string() + ": ";
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors) {
    FATHOM_RETURN_IF_ERROR(CheckTensor(tensor, where));
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const StoredTensor* a, const StoredTensor* b) { return a->name < b->name; });
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string& name = order[i]->name;
    if (name == "__metadata__" || (i > 0 && order[i - 1]->name == name)) {
      return InvalidArgument(where + Quoted(name) + ": name is given twice or reserved");
    }
    if (!Json::accept(JsonString(name))) {
      return InvalidArgument(where + Quoted(name) + ": name is not UTF-8");
    }
  }
  std::stable_sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return DTypeBytes(a->dtype) > DTypeBytes(b->dtype);
  });

  std::filesystem::path partial = path;
  partial += ".partial";
  Status status = WriteAll(partial, HeaderText(order), order);
  std::error_code error;
  if (status.ok()) {
    std::filesystem::rename(partial, path, error);
    if (error) status = Unavailable(where + "cannot rename: " + error.message());
  }
  if (!status.ok()) std::filesystem::remove(partial, error);
  return status;
}

}  // namespace fathom
