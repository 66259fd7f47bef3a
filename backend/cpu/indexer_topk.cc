// See backend/ops/indexer_topk.h for the contract.
//
// Queries with no more candidates than top-k take them all. The others are done in batches whose
// scores fit into scratch memory: queries are rotated and rounded, then (few queries, stretch of
// keys) tasks score, then each query selects.
#include "backend/cpu/index_scorer.h"
#include "backend/cpu/scratch.h"
#include "backend/cpu/topk.h"

namespace fathom {
namespace {

constexpr int kQueriesPerTask = 8;
constexpr int kKeysPerTask = 4 * cpu::kTile;
// From here on a thread selects for a whole query.
constexpr int64_t kManyQueries = 4;
constexpr int64_t kPieceWork = 65536;

}  // namespace

Status CpuBackend::DoIndexerTopk(const IndexerTopkArgs& args) {
  const auto num_heads = static_cast<int>(args.q.dim(1));
  const auto dim = static_cast<int>(args.q.dim(2));
  const int64_t query_size = args.q.row_size();
  FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: heads", num_heads, scratch_->limits.max_heads));
  FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: dim", dim, scratch_->limits.max_head_dim));
  FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: dim", dim, cpu::kMaxHadamard));
  const cpu::IndexScorer scorer(numerics(), args.keys, num_heads, dim,
                                {scratch_->index_queries.data(), scratch_->index_weights.data(),
                                 scratch_->index_slots.data(), scratch_->index_heads.data()});
  const std::span<const BlockTable> tables = args.plan->TablesFor(CacheKind::kC4IndexKeys);

  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    const auto visible = [&](int64_t r) {
      return int64_t{VisibleEntries(rows.start + static_cast<Position>(r), 4)};
    };
    int64_t scored_from = 0;  // visibility only grows along a sequence
    for (; scored_from < rows.num_rows && visible(scored_from) <= args.topk; ++scored_from) {
      const int64_t i = rows.first_row + scored_from;
      const auto count = static_cast<int32_t>(visible(scored_from));
      const std::span<int32_t> out = args.entries.row(i);
      for (int32_t j = 0; j < args.topk; ++j) out[static_cast<size_t>(j)] = j < count ? j : -1;
      args.num_entries.data()[i] = count;
    }
    if (scored_from == rows.num_rows) continue;
    const int64_t most = visible(rows.num_rows - 1);
    FATHOM_RETURN_IF_ERROR(Fits("indexer_topk: entries", most, scratch_->max_entries));
    const int64_t batch = std::min<int64_t>(kIndexRows, scratch_->score_capacity / most);

    for (int64_t begin = scored_from; begin < rows.num_rows; begin += batch) {
      const int64_t count = std::min(batch, rows.num_rows - begin);
      float* scores = scratch_->index_scores.data();
      ForEach(count, 8 * query_size, [&](int64_t r, int) {
        const int64_t i = rows.first_row + begin + r;
        scorer.SetQuery(r, {args.q.row(i).data(), static_cast<size_t>(query_size)},
                        args.cos_sin.row(i), args.head_weights.row(i));
      });

      const int64_t stretches = (most + kKeysPerTask - 1) / kKeysPerTask;
      const int64_t groups = (count + kQueriesPerTask - 1) / kQueriesPerTask;
      ForEach(groups * stretches,
              scorer.work() * kKeysPerTask * std::min<int64_t>(kQueriesPerTask, count),
              [&](int64_t task, int thread) {
                const int64_t first = task / stretches * kQueriesPerTask;
                const int64_t last = std::min(count, first + kQueriesPerTask);
                const int64_t from = task % stretches * kKeysPerTask;
                const cpu::IndexTile tile = {
                    scratch_->thread_window.part(thread), scratch_->thread_tile.part(thread),
                    scratch_->thread_codes.part(thread), scratch_->thread_code_scales.part(thread),
                    scratch_->thread_dots.part(thread)};
                scorer.Score(tables[s], from, from + kKeysPerTask,
                             rows.start + static_cast<Position>(begin), first, last, tile, scores,
                             most);
              });

      const auto selection = [&](int64_t r, int thread) {
        const int64_t i = rows.first_row + begin + r;
        args.num_entries.data()[i] = args.topk;
        const std::span<const float> row(scores + r * most,
                                         static_cast<size_t>(visible(begin + r)));
        return cpu::TopkSelection(row, args.entries.row(i), scratch_->thread_list.part(thread),
                                  scratch_->thread_keys.part(thread));
      };
      if (count >= kManyQueries) {
        ForEach(count, 4 * most, [&](int64_t r, int thread) { selection(r, thread).Run(); });
        continue;
      }
      // The pieces of a long row are shared between threads.
      for (int64_t r = 0; r < count; ++r) {
        cpu::TopkSelection select = selection(r, 0);
        const auto for_pieces = [&](const auto& step) {
          ForEach(select.num_pieces(), kPieceWork,
                  [&](int64_t p, int) { step(static_cast<int>(p)); });
        };
        for_pieces([&](int p) { select.FindMaxima(p); });
        select.FindBound();
        for_pieces([&](int p) { select.Collect(p); });
        select.Finish();
      }
    }
  }
  return OkStatus();
}

}  // namespace fathom
