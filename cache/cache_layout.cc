#include "cache/cache_layout.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fathom {
namespace {

bool LayerHas(int ratio, CacheKind kind) {
  switch (kind) {
    case CacheKind::kSwaKv:
      return true;
    case CacheKind::kC4Kv:
    case CacheKind::kC4IndexKeys:
    case CacheKind::kC4State:
    case CacheKind::kC4IndexState:
      return ratio == 4;
    case CacheKind::kC128Kv:
    case CacheKind::kC128State:
      return ratio == 128;
  }
  return false;
}

EntryEncoding AttentionEncoding(CacheDType dtype) {
  switch (dtype) {
    case CacheDType::kF32:
      return EntryEncoding::kF32;
    case CacheDType::kBf16:
      return EntryEncoding::kBf16Rope;
    case CacheDType::kFp8:
    case CacheDType::kFp4:  // refused by the constructor
      return EntryEncoding::kE4m3Rope;
  }
  return EntryEncoding::kE4m3Rope;
}

EntryEncoding IndexerEncoding(CacheDType dtype) {
  switch (dtype) {
    case CacheDType::kF32:
      return EntryEncoding::kF32;
    case CacheDType::kBf16:
      return EntryEncoding::kBf16;
    case CacheDType::kFp8:
      return EntryEncoding::kE4m3Scaled;
    case CacheDType::kFp4:
      return EntryEncoding::kE2m1;
  }
  return EntryEncoding::kE2m1;
}

}  // namespace

CacheLayout::CacheLayout(CacheGeometry geometry, CacheDTypes dtypes)
    : geometry_(std::move(geometry)), dtypes_(dtypes) {
  FATHOM_CHECK(dtypes.attention != CacheDType::kFp4, "attention entries have no fp4 format");
  for (int ratio : geometry_.ratios) {
    std::array<int64_t, kNumCacheKinds>& offsets = offsets_.emplace_back();
    offsets.fill(-1);
    for (int k = 0; k < kNumCacheKinds; ++k) {
      const auto kind = static_cast<CacheKind>(k);
      if (!LayerHas(ratio, kind)) continue;
      int64_t& block_bytes = block_bytes_[static_cast<size_t>(ClassOf(kind))];
      offsets[static_cast<size_t>(k)] = block_bytes;
      block_bytes += PageBytes(kind);
    }
  }
}

PageFormat CacheLayout::Format(CacheKind kind) const {
  PageFormat format;
  format.entries_per_page = PositionsPerBlock(ClassOf(kind)) / PositionsPerEntry(kind);
  switch (kind) {
    case CacheKind::kSwaKv:
    case CacheKind::kC4Kv:
    case CacheKind::kC128Kv:
      format.encoding = AttentionEncoding(dtypes_.attention);
      format.dim = geometry_.head_dim;
      format.rope_dim = geometry_.rope_dim;
      break;
    case CacheKind::kC4IndexKeys:
      format.encoding = IndexerEncoding(dtypes_.indexer);
      format.dim = geometry_.index_head_dim;
      break;
    // Compressor rows are [K | S] of coff * width channels each, coff = 2 for ratio 4.
    case CacheKind::kC4State:
      format.dim = 4 * geometry_.head_dim;
      break;
    case CacheKind::kC128State:
      format.dim = 2 * geometry_.head_dim;
      break;
    case CacheKind::kC4IndexState:
      format.dim = 4 * geometry_.index_head_dim;
      break;
  }
  return format;
}

int64_t CacheLayout::PageBytes(CacheKind kind) const {
  const int64_t content = Format(kind).content_bytes();
  if (dtypes_.attention != CacheDType::kFp8) return content;
  const int64_t unit = geometry_.head_dim + geometry_.rope_dim;
  return (content + unit - 1) / unit * unit;
}

int CacheLayout::NumLayers(CacheKind kind) const {
  return static_cast<int>(std::count_if(geometry_.ratios.begin(), geometry_.ratios.end(),
                                        [kind](int ratio) { return LayerHas(ratio, kind); }));
}

int CacheLayout::PositionsPerEntry(CacheKind kind) {
  switch (kind) {
    case CacheKind::kC4Kv:
    case CacheKind::kC4IndexKeys:
      return 4;
    case CacheKind::kC128Kv:
      return 128;
    default:
      return 1;
  }
}

int CacheLayout::PositionsPerBlock(CacheClass cache_class) {
  switch (cache_class) {
    case CacheClass::kFull:
      return kBlockPositions;
    case CacheClass::kSwa:
      return 64;
    case CacheClass::kState4:
      return 4;
    case CacheClass::kState128:
      return 8;
  }
  return 0;
}

int CacheLayout::WindowPositions(CacheClass cache_class) const {
  switch (cache_class) {
    case CacheClass::kFull:
      return 0;
    case CacheClass::kSwa:
      return geometry_.window;
    case CacheClass::kState4:
      return 8;
    case CacheClass::kState128:
      return 128;
  }
  return 0;
}

int64_t CacheLayout::LiveBegin(CacheClass cache_class, int64_t position) const {
  switch (cache_class) {
    case CacheClass::kFull:
      return 0;
    case CacheClass::kSwa:
      return position - (geometry_.window - 1);
    case CacheClass::kState4:
      return position - position % 4 - 4;
    case CacheClass::kState128:
      return position - position % 128;
  }
  return 0;
}

std::vector<LayerPages> CacheLayout::Views(std::byte* memory, int64_t unit) const {
  std::vector<LayerPages> views(offsets_.size());
  for (size_t layer = 0; layer < offsets_.size(); ++layer) {
    for (size_t k = 0; k < kNumCacheKinds; ++k) {
      if (offsets_[layer][k] < 0) continue;
      views[layer][k] = {Format(static_cast<CacheKind>(k)), memory + offsets_[layer][k], unit};
    }
  }
  return views;
}

}  // namespace fathom
