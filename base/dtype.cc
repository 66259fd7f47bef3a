#include "base/dtype.h"

#include <array>
#include <utility>

namespace fathom {
namespace {
constexpr std::array<std::pair<DType, std::string_view>, 11> kNames = {{
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kF8E8M0, "F8_E8M0"},
    {DType::kI8, "I8"},
    {DType::kU8, "U8"},
    {DType::kI32, "I32"},
    {DType::kI64, "I64"},
    {DType::kBF16, "BF16"},
    {DType::kF16, "F16"},
    {DType::kF32, "F32"},
    {DType::kF64, "F64"},
    {DType::kBool, "BOOL"},
}};
}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const auto& [value, spelling] : kNames) {
    if (spelling == name) return value;
  }
  return std::nullopt;
}

}  // namespace fathom
