// Element types as checkpoints name them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fathom {

enum class DType : uint8_t {
  kF8E4M3,
  kF8E8M0,
  kI8,
  kU8,
  kI32,
  kI64,
  kBF16,
  kF16,
  kF32,
  kF64,
  kBool
};

// Bytes per element. kI8 may hold two packed e2m1 values per byte; that is a matter of the tensor.
constexpr int DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
    case DType::kF8E8M0:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

// The safetensors spelling: "F8_E4M3", "BF16", ...
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

}  // namespace fathom
