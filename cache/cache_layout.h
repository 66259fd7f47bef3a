// CacheLayout: every byte size of the attention cache, from the model's geometry and the formats of
// its entries.
//
// Kinds that grow and go together form a class; a class allocates page blocks, each holding the
// pages of all its layers for the same positions at fixed offsets. Kernels, allocator and planner
// take their sizes from here. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/numerics.h"
#include "backend/page_format.h"
#include "backend/step_plan.h"
#include "cache/cache_dtype.h"

namespace fathom {

struct CacheGeometry {
  std::vector<int> ratios;  // 0, 4 or 128 per layer; those of loaded MTP blocks come last
  int head_dim = 0;
  int rope_dim = 0;
  int index_head_dim = 0;
  int window = 0;          // positions
  int num_mtp_layers = 0;  // how many of `ratios`, at the end, belong to MTP blocks
};

// a / b, rounded up; both at least 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Positions of one logical block, the unit that schedulers count.
inline constexpr int kBlockPositions = 256;

// Page blocks begin at multiples of this many bytes.
inline constexpr int64_t kBlockAlignment = 64;

class CacheLayout {
 public:
  // Attention entries of fp4 are a programming error (CheckCacheDTypes).
  CacheLayout(CacheGeometry geometry, CacheDTypes dtypes);
  CacheLayout(CacheGeometry geometry, Numerics numerics)
      : CacheLayout(std::move(geometry), DefaultCacheDTypes(numerics)) {}

  [[nodiscard]] const CacheGeometry& geometry() const { return geometry_; }
  [[nodiscard]] CacheDTypes dtypes() const { return dtypes_; }
  [[nodiscard]] PageFormat Format(CacheKind kind) const;
  // Bytes of one page. Beside fp8 attention entries every page is rounded up to a multiple of an
  // entry's value bytes, as the public kernels want it; other pages are not padded.
  [[nodiscard]] int64_t PageBytes(CacheKind kind) const;
  // Layers that have the kind, MTP blocks included.
  [[nodiscard]] int NumLayers(CacheKind kind) const;

  // Positions behind one entry: 1, 4 or 128.
  [[nodiscard]] static int PositionsPerEntry(CacheKind kind);

  // Positions that a page block of the class covers: 256, 64, 4, 8.
  [[nodiscard]] static int PositionsPerBlock(CacheClass cache_class);
  // Positions behind the next one that a sliding class must keep; 0 for the full class (all of
  // them).
  [[nodiscard]] int WindowPositions(CacheClass cache_class) const;
  [[nodiscard]] int64_t BlockBytes(CacheClass cache_class) const {
    return block_bytes_[static_cast<size_t>(cache_class)];
  }
  // The first position whose entry of the class is read again when `position` and those behind it
  // are computed: everything of the full class; the window without the position itself; the
  // compressor rows of the previous and the current compression window (ratio 4) or of the current
  // one (ratio 128). May be negative near the beginning.
  [[nodiscard]] int64_t LiveBegin(CacheClass cache_class, int64_t position) const;

  // The views of all layers' pages in memory whose block tables count in units of `unit` bytes.
  [[nodiscard]] std::vector<LayerPages> Views(std::byte* memory, int64_t unit) const;

 private:
  CacheGeometry geometry_;
  CacheDTypes dtypes_;
  // Offset of a layer's page in its class's block; -1 where the layer has no such kind.
  std::vector<std::array<int64_t, kNumCacheKinds>> offsets_;
  std::array<int64_t, kNumCacheClasses> block_bytes_{};
};

}  // namespace fathom
