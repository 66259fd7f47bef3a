// CacheDTypes: in which number formats a cache keeps attention entries and index keys.
//
// The official code computes with KV values on an e4m3 grid and index keys on an e2m1 grid, so bf16
// and fp8 attention entries hold the same values, and so do bf16, fp8 and fp4 index keys
// (docs/planning.md): the choice is one of bytes. fp32 is exact mode, which rounds nothing.
#pragma once

#include <string_view>

#include "backend/numerics.h"
#include "base/status.h"

namespace fathom {

enum class CacheDType { kF32, kBf16, kFp8, kFp4 };

struct CacheDTypes {
  CacheDType attention = CacheDType::kFp8;  // kF32, kBf16 or kFp8
  CacheDType indexer = CacheDType::kFp4;    // any

  bool operator==(const CacheDTypes&) const = default;
};

// kInvalidArgument when a cache of these numerics cannot be kept so: exact mode needs fp32 for both
// and official mode cannot have it (its values are rounded before they are stored).
Status CheckCacheDTypes(CacheDTypes dtypes, Numerics numerics);

// What a cache of these numerics has where nobody chose: fp8 and fp4, or fp32 for both.
CacheDTypes DefaultCacheDTypes(Numerics numerics);

// "fp32", "bf16", "fp8", "fp4".
std::string_view CacheDTypeName(CacheDType dtype);

// The values of --kv-cache-dtype and --indexer-cache-dtype: auto, fp8 (also fp8_e4m3 and
// fp8_ds_mla), fp4 (also mxfp4; index keys only), bf16 (bfloat16), fp32 (float32). kInvalidArgument
// names what is accepted.
Result<CacheDType> ParseAttentionCacheDType(std::string_view text);
Result<CacheDType> ParseIndexerCacheDType(std::string_view text);

}  // namespace fathom
