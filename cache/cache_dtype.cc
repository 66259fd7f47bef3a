#include "cache/cache_dtype.h"

#include <optional>
#include <string>

namespace fathom {
namespace {

std::optional<CacheDType> Parse(std::string_view text) {
  if (text == "fp8" || text == "fp8_e4m3" || text == "fp8_ds_mla") return CacheDType::kFp8;
  if (text == "fp4" || text == "mxfp4") return CacheDType::kFp4;
  if (text == "bf16" || text == "bfloat16") return CacheDType::kBf16;
  if (text == "fp32" || text == "float32") return CacheDType::kF32;
  return std::nullopt;
}

}  // namespace

Status CheckCacheDTypes(CacheDTypes dtypes, Numerics numerics) {
  if (dtypes.attention == CacheDType::kFp4) {
    return InvalidArgument("attention entries have no fp4 format");
  }
  const bool exact = numerics == Numerics::kExact;
  if ((dtypes.attention == CacheDType::kF32) != exact ||
      (dtypes.indexer == CacheDType::kF32) != exact) {
    return InvalidArgument("a cache of " + std::string(CacheDTypeName(dtypes.attention)) +
                           " attention entries and " + std::string(CacheDTypeName(dtypes.indexer)) +
                           " index keys: fp32 is for both, in exact mode, or for neither");
  }
  return OkStatus();
}

CacheDTypes DefaultCacheDTypes(Numerics numerics) {
  if (numerics == Numerics::kExact) return {CacheDType::kF32, CacheDType::kF32};
  return {};
}

std::string_view CacheDTypeName(CacheDType dtype) {
  switch (dtype) {
    case CacheDType::kF32:
      return "fp32";
    case CacheDType::kBf16:
      return "bf16";
    case CacheDType::kFp8:
      return "fp8";
    case CacheDType::kFp4:
      return "fp4";
  }
  return "?";
}

Result<CacheDType> ParseAttentionCacheDType(std::string_view text) {
  if (text == "auto") return CacheDTypes{}.attention;
  const std::optional<CacheDType> dtype = Parse(text);
  if (!dtype || *dtype == CacheDType::kFp4) {
    return InvalidArgument("'" + std::string(text) +
                           "' is no format of attention entries; there are auto, fp8, bf16, fp32");
  }
  return *dtype;
}

Result<CacheDType> ParseIndexerCacheDType(std::string_view text) {
  if (text == "auto") return CacheDTypes{}.indexer;
  const std::optional<CacheDType> dtype = Parse(text);
  if (!dtype) {
    return InvalidArgument("'" + std::string(text) +
                           "' is no format of index keys; there are auto, fp4, fp8, bf16, fp32");
  }
  return *dtype;
}

}  // namespace fathom
