// The cases of operations that read or write the cache.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "bench/op_cases.h"

namespace fathom::bench {
Status OpCases::AddQNormRopeKvInsert() {
  const ModelConfig& c = config_;
  QNormRopeKvInsertArgs args;
  args.q = Values({n_, c.num_heads, c.head_dim});
  args.kv = Values({n_, c.head_dim});
  args.kv_norm_weight = Values({c.head_dim});
  args.cos_sin = Values({n_, c.rope_dim / 2, 2});
  args.norm_eps = static_cast<float>(c.rms_norm_eps);
  args.plan = &cache_->plan();
  args.swa = cache_->Pages(OpCache::kC4Layer, CacheKind::kSwaKv);
  args.step_kv = Values({n_, c.head_dim});
  OpCase op{"q_norm_rope_kv_insert", "window"};
  op.cache_bytes = n_ * cache_->EntryBytes(CacheKind::kSwaKv);
  op.activation_bytes = 2 * ViewBytes(args.q) + ViewBytes(args.kv, args.cos_sin, args.step_kv);
  op.flop = static_cast<double>(n_) * (c.num_heads + 1) * (3.0 * c.head_dim + 3.0 * c.rope_dim);
  op.args = args;
  op.run = [this, args] { return backend_.QNormRopeKvInsert(args); };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddCompressInserts() {
  FATHOM_RETURN_IF_ERROR(AddCompressInsert("ratio 4", 4, false));
  FATHOM_RETURN_IF_ERROR(AddCompressInsert("index keys", 4, true));
  return AddCompressInsert("ratio 128", 128, false);
}

Status OpCases::AddCompressInsert(const char* what, int ratio, bool index_side) {
  const int width = index_side ? config_.index_head_dim : config_.head_dim;
  const int row = (ratio == 4 ? 2 : 1) * width;
  const SequenceRows& rows = cache_->plan().sequences[0];
  const EndingEntries ending = EntriesEnding(rows, ratio);
  CompressInsertArgs args;
  args.kv_rows = Values({n_, row});
  args.score_rows = Values({n_, row});
  args.ape = Values({ratio, row});
  args.norm_weight = Values({width});
  args.anchor_cos_sin = Values({ending.count, config_.rope_dim / 2, 2});
  args.norm_eps = static_cast<float>(config_.rms_norm_eps);
  args.ratio = ratio;
  args.index_side = index_side;
  args.plan = &cache_->plan();
  int layer = OpCache::kC4Layer;
  if (ratio == 4) {
    args.state_kind = index_side ? CacheKind::kC4IndexState : CacheKind::kC4State;
    args.out_kind = index_side ? CacheKind::kC4IndexKeys : CacheKind::kC4Kv;
  } else {
    layer = OpCache::kC128Layer;
    args.state_kind = CacheKind::kC128State;
    args.out_kind = CacheKind::kC128Kv;
  }
  args.state = cache_->Pages(layer, args.state_kind);
  args.out = cache_->Pages(layer, args.out_kind);
  // Rows in front of the step that its first entry pools, rows that are stored for later steps.
  int64_t state_rows = std::min<int64_t>(n_, ratio == 4 ? 8 : 128);
  if (ending.count > 0) {
    state_rows += std::max(0, rows.start - FirstRowOfEntry(ending.first, ratio));
  }
  OpCase op{"compress_insert",
            std::string(what) + ", entries ending: " + std::to_string(ending.count)};
  op.cache_bytes = state_rows * cache_->EntryBytes(args.state_kind) +
                   ending.count * cache_->EntryBytes(args.out_kind);
  op.activation_bytes = ViewBytes(args.kv_rows, args.score_rows, args.ape);
  // Of a pooled item: maximum, difference, exponential, sum, product and sum.
  const int items = ratio == 4 ? 8 : 128;
  op.flop = static_cast<double>(ending.count) * width * (6.0 * items + 5.0) +
            static_cast<double>(n_) * row;
  op.args = args;
  op.run = [this, args] { return backend_.CompressInsert(args); };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddIndexerTopk() {
  const ModelConfig& c = config_;
  IndexerTopkArgs args;
  args.q = Values({n_, c.index_num_heads, c.index_head_dim});
  args.head_weights = Values({n_, c.index_num_heads});
  args.cos_sin = Values({n_, c.rope_dim / 2, 2});
  args.plan = &cache_->plan();
  args.keys = cache_->Pages(OpCache::kC4Layer, CacheKind::kC4IndexKeys);
  args.topk = c.index_topk;
  args.entries = Room<int32_t>({n_, c.index_topk});
  args.num_entries = Room<int32_t>({n_});
  // Queries with no more entries than they may choose score none.
  double scores = 0.0;
  int most = 0;
  for (const Position position : cache_->plan().positions) {
    const int visible = VisibleEntries(position, 4);
    if (visible <= c.index_topk) continue;
    scores += visible;
    most = std::max(most, visible);
  }
  OpCase op{"indexer_topk", std::to_string(most) + " keys, top " + std::to_string(c.index_topk)};
  op.cache_bytes = most * cache_->EntryBytes(CacheKind::kC4IndexKeys);
  op.activation_bytes = ViewBytes(args.q, args.head_weights, args.cos_sin, args.entries);
  const double heads = c.index_num_heads, dim = c.index_head_dim;
  op.flop = scores * heads * (2.0 * dim + 3.0);
  if (most > 0) op.flop += n_ * heads * (dim * std::log2(dim) + 3.0 * c.rope_dim);
  op.run = [this, args] { return backend_.IndexerTopk(args); };
  cases_.push_back(std::move(op));
  return OkStatus();
}

Status OpCases::AddSparseAttentions() {
  FATHOM_RETURN_IF_ERROR(AddSparseAttention("window", 0));
  FATHOM_RETURN_IF_ERROR(AddSparseAttention("window and chosen entries of ratio 4", 4));
  return AddSparseAttention("window and entries of ratio 128", 128);
}

Status OpCases::AddSparseAttention(const char* what, int ratio) {
  const ModelConfig& c = config_;
  const StepPlan& plan = cache_->plan();
  const int layer = ratio == 128 ? OpCache::kC128Layer : OpCache::kC4Layer;
  SparseAttentionArgs args;
  args.q = Values({n_, c.num_heads, c.head_dim});
  args.plan = &plan;
  args.step_kv = Values({n_, c.head_dim});
  args.swa = cache_->Pages(layer, CacheKind::kSwaKv);
  args.window = c.window;
  args.sink = Values({c.num_heads});
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  args.out = Values({n_, c.num_heads, c.head_dim});
  OpCase op{"sparse_attention", what};
  op.cache_bytes =
      std::min<int64_t>(plan.positions[0], c.window - 1) * cache_->EntryBytes(CacheKind::kSwaKv);
  double keys = 0.0;
  for (const Position position : plan.positions) keys += std::min(position + 1, c.window);
  if (ratio != 0) {
    args.compressed_kind = ratio == 4 ? CacheKind::kC4Kv : CacheKind::kC128Kv;
    args.compressed = cache_->Pages(layer, args.compressed_kind);
    args.ratio = ratio;
    const int most = VisibleEntries(plan.positions.back(), ratio);
    std::vector<bool> read(static_cast<size_t>(most), ratio == 128);
    std::vector<int32_t> counts(static_cast<size_t>(n_));
    std::vector<int32_t> entries(counts.size() * static_cast<size_t>(c.index_topk), -1);
    for (int row = 0; row < n_; ++row) {
      const int visible = VisibleEntries(plan.positions[static_cast<size_t>(row)], ratio);
      const int chosen = ratio == 4 ? std::min(visible, c.index_topk) : visible;
      keys += chosen;
      if (ratio != 4) continue;
      // Evenly over all of them: as far from each other as a top-k's.
      counts[static_cast<size_t>(row)] = chosen;
      int32_t* const chosen_entries =
          &entries[static_cast<size_t>(row) * static_cast<size_t>(c.index_topk)];
      for (int64_t j = 0; j < chosen; ++j) {
        const auto entry = static_cast<int32_t>(j * visible / chosen);
        chosen_entries[j] = entry;
        read[static_cast<size_t>(entry)] = true;
      }
    }
    if (ratio == 4) {
      args.entries = CopyOf<int32_t>(entries, {n_, c.index_topk});
      args.num_entries = CopyOf<int32_t>(counts, {n_});
    }
    op.cache_bytes +=
        std::count(read.begin(), read.end(), true) * cache_->EntryBytes(args.compressed_kind);
  }
  op.activation_bytes = ViewBytes(args.q, args.step_kv, args.out, args.entries);
  // Scores and values are products of all heads; an exponential and its sum beside them.
  op.flop = keys * c.num_heads * (4.0 * c.head_dim + 3.0);
  op.run = [this, args] { return backend_.SparseAttention(args); };
  cases_.push_back(std::move(op));
  return OkStatus();
}

}  // namespace fathom::bench
