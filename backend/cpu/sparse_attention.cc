// See backend/ops/sparse_attention.h for the contract.
//
// A task is a few neighbouring queries of one sequence and a group of heads. Window entries that
// are all of this step are read where they are; otherwise they are gathered, and earlier ones
// decoded, once for all its queries. Each query takes its entries in tiles of kTile, counted from
// its own first window entry and from its own first compressed entry, with online softmax: so its
// sums depend neither on which queries it shares a task with nor on where an entry comes from.
#include <limits>

#include "backend/cpu/scratch.h"

namespace fathom {
namespace {

// Queries [first, first + count) of one sequence.
struct QueryBlock {
  size_t sequence = 0;
  int64_t first_row = 0;
  int count = 0;
  Position start = 0;  // position of the first
};

}  // namespace

Status CpuBackend::DoSparseAttention(const SparseAttentionArgs& args) {
  const auto num_heads = static_cast<int>(args.q.dim(1));
  const auto dim = static_cast<int>(args.q.dim(2));
  FATHOM_RETURN_IF_ERROR(Fits("sparse_attention: heads", num_heads, scratch_->limits.max_heads));
  FATHOM_RETURN_IF_ERROR(Fits("sparse_attention: head dim", dim, scratch_->limits.max_head_dim));
  const std::span<const BlockTable> swa_tables = args.plan->TablesFor(CacheKind::kSwaKv);

  // Windows of neighbours overlap in all but one entry each. A window too long for the buffer is
  // gathered tile by tile for each query.
  const bool share_window = args.window < kWindowRows;
  const int queries = share_window ? std::min(kQueryBlock, kWindowRows - args.window + 1) : 1;

  const auto attend_block = [&](const QueryBlock& block, int first_head, int heads, int thread) {
    float* window = scratch_->thread_window.part(thread);
    float* tile = scratch_->thread_tile.part(thread);
    float* max = scratch_->thread_softmax.part(thread);
    float* den = max + int64_t{kQueryBlock} * scratch_->limits.max_heads;
    const auto add_tile = [&](int query, const float* kv, int num) {
      const int64_t row = block.first_row + query;
      const int64_t head = first_head;
      cpu::AttendTile(args.q.row(row).data() + head * dim, heads, dim, kv, num, args.scale,
                      max + int64_t{query} * heads, den + int64_t{query} * heads,
                      args.out.row(row).data() + head * dim);
    };
    for (int query = 0; query < block.count; ++query) {
      std::fill_n(max + int64_t{query} * heads, heads, -std::numeric_limits<float>::infinity());
      std::fill_n(den + int64_t{query} * heads, heads, 0.0f);
      std::fill_n(args.out.row(block.first_row + query).data() + int64_t{first_head} * dim,
                  int64_t{heads} * dim, 0.0f);
    }

    const auto window_begin = [&](int query) {
      return std::max(0, block.start + query - args.window + 1);
    };
    // Entries [begin, end) of the window in a row, in `buffer` unless they are so in step_kv.
    const SequenceRows& rows = args.plan->sequences[block.sequence];
    const auto window_entries = [&](Position begin, Position end, float* buffer) -> const float* {
      const auto in_step = [&](Position p) {
        return args.step_kv.row(rows.first_row + (p - rows.start)).data();
      };
      if (begin >= rows.start) return in_step(begin);
      float* out = buffer;
      Position p = begin;
      for (; p < std::min(end, rows.start); ++p, out += dim) {
        cpu::DecodeEntry(args.swa.format, Locate(args.swa, swa_tables[block.sequence], p), out);
      }
      if (p < end) std::copy_n(in_step(p), int64_t{end - p} * dim, out);
      return buffer;
    };
    const Position shared_begin = window_begin(0);
    const float* shared =
        share_window ? window_entries(shared_begin, block.start + block.count, window) : nullptr;
    for (int query = 0; query < block.count; ++query) {
      const Position end = block.start + query + 1;
      for (Position p = window_begin(query); p < end; p += cpu::kTile) {
        const int num = std::min(cpu::kTile, end - p);
        add_tile(query,
                 share_window ? shared + int64_t{p - shared_begin} * dim
                              : window_entries(p, p + num, tile),
                 num);
      }
    }

    if (!args.compressed.empty()) {
      const BlockTable& table = args.plan->TablesFor(args.compressed_kind)[block.sequence];
      const auto decode = [&](int64_t entry, float* out) {
        cpu::DecodeEntry(args.compressed.format, Locate(args.compressed, table, entry), out);
      };
      const auto visible = [&](int query) {
        return VisibleEntries(block.start + query, args.ratio);
      };
      // Queries that attend to everything visible share the decoded tiles too.
      bool all_visible = true;
      for (int query = 0; query < block.count && !args.entries.empty(); ++query) {
        all_visible =
            all_visible && args.num_entries.data()[block.first_row + query] == visible(query);
      }
      if (all_visible) {
        const int last = visible(block.count - 1);
        for (int begin = 0; begin < last; begin += cpu::kTile) {
          const int end = std::min(last, begin + cpu::kTile);
          for (int j = begin; j < end; ++j) decode(j, tile + int64_t{j - begin} * dim);
          for (int query = 0; query < block.count; ++query) {
            const int num = std::min(cpu::kTile, visible(query) - begin);
            if (num > 0) add_tile(query, tile, num);
          }
        }
      } else {
        for (int query = 0; query < block.count; ++query) {
          const int64_t row = block.first_row + query;
          const int32_t* chosen = args.entries.row(row).data();
          const int count = args.num_entries.data()[row];
          for (int begin = 0; begin < count; begin += cpu::kTile) {
            const int num = std::min(cpu::kTile, count - begin);
            for (int j = 0; j < num; ++j) decode(chosen[begin + j], tile + int64_t{j} * dim);
            add_tile(query, tile, num);
          }
        }
      }
    }
    for (int query = 0; query < block.count; ++query) {
      const int64_t row = block.first_row + query;
      cpu::FinishAttention(heads, dim, max + int64_t{query} * heads, den + int64_t{query} * heads,
                           args.sink.data() + first_head, official(),
                           args.out.row(row).data() + int64_t{first_head} * dim);
    }
  };

  // Few queries (decode): heads are split as well, and each group decodes the entries again.
  const int64_t rows = args.q.dim(0);
  const int heads_each = rows < kQueryBlock ? std::min(num_heads, 16) : num_heads;
  const int head_groups = (num_heads + heads_each - 1) / heads_each;
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& seq = args.plan->sequences[s];
    const int64_t blocks = (seq.num_rows + queries - 1) / queries;
    ForEach(blocks * head_groups, int64_t{heads_each} * dim * args.window * queries,
            [&](int64_t task, int thread) {
              const auto first = static_cast<int>(task / head_groups) * queries;
              const int head = static_cast<int>(task % head_groups) * heads_each;
              const QueryBlock block{s, seq.first_row + first,
                                     std::min(queries, seq.num_rows - first), seq.start + first};
              attend_block(block, head, std::min(heads_each, num_heads - head), thread);
            });
  }
  return OkStatus();
}

}  // namespace fathom
