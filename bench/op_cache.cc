#include "bench/op_cache.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "backend/page_codec.h"
#include "base/formats.h"
#include "bench/workload.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {

Result<std::unique_ptr<OpCache>> OpCache::Create(const ModelConfig& config, DeviceMemory& memory,
                                                 int64_t context, int num_rows) {
  CacheGeometry geometry = CacheGeometryOf(config);
  geometry.ratios = {4, 128};
  geometry.num_mtp_layers = 0;
  const CachePlanner planner(CacheLayout(geometry, Numerics::kOfficial));
  const int64_t length = context + num_rows;
  BlockManagerOptions options;
  options.max_positions = length;
  options.max_step_positions = std::max(num_rows, kBlockPositions);
  options.prefix_caching = false;
  std::unique_ptr<OpCache> cache(new OpCache);
  const int64_t slabs = planner.BytesFor(1, length) / planner.slab_bytes();
  FATHOM_ASSIGN_OR_RETURN(cache->manager_, BlockManager::Create(planner, slabs, options));
  FATHOM_ASSIGN_OR_RETURN(cache->memory_,
                          CacheMemory::Create(planner.layout(), cache->manager_->pool(), memory));
  BlockManager& manager = *cache->manager_;
  const std::optional<SequenceId> id = manager.Admit({}, nullptr, length);
  if (!id) return Internal("the cache has no room for its sequence");
  for (int64_t at = 0; at < context;) {
    at = std::min<int64_t>(at + options.max_step_positions, context);
    if (!manager.Extend(*id, at)) return Internal("the cache has no room for its context");
    manager.Commit(*id, {});
  }
  if (!manager.Extend(*id, length)) return Internal("the cache has no room for its step");
  FATHOM_RETURN_IF_ERROR(cache->memory_->CarryOut(manager));

  cache->ids_ = SyntheticTokens(1, num_rows, config.vocab_size);
  cache->positions_.resize(static_cast<size_t>(num_rows));
  std::iota(cache->positions_.begin(), cache->positions_.end(), static_cast<Position>(context));
  cache->rows_ = {0, num_rows, static_cast<Position>(context)};
  StepPlan& plan = cache->plan_;
  plan.token_ids = cache->ids_;
  plan.positions = cache->positions_;
  plan.sequences = {&cache->rows_, 1};
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    cache->tables_[c] = manager.Table(*id, static_cast<CacheClass>(c));
    plan.tables[c] = {&cache->tables_[c], 1};
  }
  plan.pages = cache->memory_->pages();
  HostDeviceMemory host;
  std::unique_ptr<CacheMemory> staged;  // the same pages, where a device has the real ones
  if (!memory.host_readable()) {
    FATHOM_ASSIGN_OR_RETURN(staged, CacheMemory::Create(planner.layout(), manager.pool(), host));
  }
  for (int layer = 0; layer < 2; ++layer) {
    for (int k = 0; k < kNumCacheKinds; ++k) {
      const auto kind = static_cast<CacheKind>(k);
      if (plan.Pages(layer, kind).empty()) continue;
      const int64_t begin =
          std::max<int64_t>(0, planner.layout().LiveBegin(ClassOf(kind), context));
      const int per_entry = CacheLayout::PositionsPerEntry(kind);
      const PageView& pages = plan.Pages(layer, kind);
      const PageView& written =
          staged == nullptr ? pages
                            : staged->pages()[static_cast<size_t>(layer)][static_cast<size_t>(k)];
      cache->Fill(kind, written, begin / per_entry, length / per_entry);
      if (staged == nullptr) continue;
      const BlockTable& table = plan.TablesFor(kind)[0];
      for (const int32_t block : std::span(table.blocks, static_cast<size_t>(table.num_blocks))) {
        if (block == kNoBlock) continue;
        const int64_t offset = block * pages.block_stride;
        FATHOM_RETURN_IF_ERROR(memory.CopyIn(
            pages.base + offset,
            {written.base + offset, static_cast<size_t>(pages.format.content_bytes())}));
      }
    }
  }
  return cache;
}

void OpCache::Fill(CacheKind kind, const PageView& pages, int64_t begin, int64_t end) {
  const BlockTable& table = plan_.TablesFor(kind)[0];
  std::vector<float> values(static_cast<size_t>(pages.format.dim));
  for (int64_t entry = begin; entry < end; ++entry) {
    if (!HasBlock(pages, table, entry)) continue;
    constexpr int kSteps = 4096;
    const std::vector<TokenId> random =
        SyntheticTokens(entry, static_cast<int64_t>(values.size()), kSteps + 32);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = RoundToBf16(static_cast<float>(random[i] - 32) * (2.0f / kSteps) - 1.0f);
    }
    StoreEntry(pages.format, Locate(pages, table, entry), values);
  }
}

}  // namespace fathom::bench
