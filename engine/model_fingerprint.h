// What the prefix cache is a cache of: a value that differs where cached entries would.
#pragma once

#include "base/status.h"
#include "cache/cache_layout.h"
#include "cache/prefix_keys.h"
#include "model/model.h"

namespace fathom {

// SHA-256 of the geometry, the rope parameters, the numerics, the cache's formats and the norm
// weights of all layers, which no two trainings share. The same on every machine. Errors are those
// of copies out of the backend's memory.
Result<PrefixKey> ModelFingerprint(const Model& model, Numerics numerics,
                                   const CacheLayout& layout);

}  // namespace fathom
