#include "bench/context_bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "bench/long_sequence.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {
namespace {

Status Check(const ModelConfig& config, const ContextBenchOptions& o) {
  int64_t before = 0;
  for (const int64_t depth : o.depths) {
    // A measurement ends in whole blocks' distance of the next, so that pages can be repeated.
    const int64_t least = before == 0 ? o.num_steps : before + kBlockPositions + o.num_steps;
    if (depth < least || depth >= config.max_position_embeddings) {
      return InvalidArgument("depth " + std::to_string(depth) + ": need one from " +
                             std::to_string(least) + " to " +
                             std::to_string(config.max_position_embeddings - 1));
    }
    before = depth;
  }
  if (o.computed_tokens < kBlockPositions || o.computed_tokens % kBlockPositions != 0 ||
      o.computed_tokens > config.max_position_embeddings) {
    return InvalidArgument("computed tokens: " + std::to_string(o.computed_tokens) +
                           " are not whole blocks of " + std::to_string(kBlockPositions) +
                           ", or more than the model has positions");
  }
  return OkStatus();
}

// What the sequence holds against what it was planned to hold at its length, and at most.
void DescribeMemory(const BlockManager& manager, int64_t length, Report& report) {
  constexpr const char* kNames[kNumCacheClasses] = {"full", "swa", "state4", "state128"};
  ReportTable table{
      "memory", {"class", "block_bytes", "blocks_in_use", "blocks_planned", "blocks_at_most"}, {}};
  const CachePlanner& planner = manager.planner();
  const ClassCounts planned = planner.BlocksAt(length);
  const ClassCounts most = planner.MaxBlocks(1, length);
  ClassCounts used{};
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    const auto cache_class = static_cast<CacheClass>(c);
    used[c] = manager.pool().Use(cache_class).in_use;
    table.rows.push_back({std::string(kNames[c]), planner.layout().BlockBytes(cache_class), used[c],
                          planned[c], most[c]});
  }
  report.tables.push_back(std::move(table));
  const BlockPool& pool = manager.pool();
  const int64_t slabs = pool.num_slabs() - pool.num_free_slabs();
  report.summary.insert(report.summary.end(),
                        {{"tokens", length},
                         {"block_bytes_in_use", planner.BlockBytes(used)},
                         {"block_bytes_planned", planner.BlockBytes(planned)},
                         {"slab_bytes_in_use", slabs * planner.slab_bytes()},
                         {"slab_bytes_planned", planner.BytesFor(1, length)}});
}

}  // namespace

Result<Report> BenchContext(const std::filesystem::path& model, const ContextBenchOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(model));
  const ModelConfig& config = checkpoint.config();
  FATHOM_RETURN_IF_ERROR(Check(config, o));
  const int64_t length = o.depths.back() + 1;
  FATHOM_ASSIGN_OR_RETURN(const CacheDemand cache, CacheDemandOf(config, o.engine, 1, length));
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<LocalModel> loaded,
      LocalModel::Load(checkpoint, o.engine, o.engine.max_batched_tokens, length, cache));
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<SequenceRunner> runner,
      SequenceRunner::Create(loaded->model(), o.engine.numerics, length, o.engine.cache_dtypes));

  Report report;
  report.bench = "context";
  report.conditions = MachineConditions();
  const int threads = o.engine.num_threads > 0 ? o.engine.num_threads : DefaultThreadCount();
  report.conditions.insert(report.conditions.end(),
                           {{"model", model.filename().string()},
                            {"backend", std::string(loaded->backend().name())},
                            {"threads", int64_t{threads}},
                            {"index_topk", int64_t{config.index_topk}},
                            {"computed_tokens", o.computed_tokens},
                            {"repetitions", int64_t{o.num_steps}}});
  ReportTable table{
      "decode step", {"depth", "median_ms", "low_ms", "high_ms", "ratio", "ratio_of_lows"}, {}};
  LongSequence sequence(*runner, config.vocab_size, o.engine.max_batched_tokens, o.computed_tokens);
  Spread first;
  double ratio = 1.0;
  for (const int64_t depth : o.depths) {
    // The last step computes position `depth`.
    FATHOM_RETURN_IF_ERROR(sequence.GoTo(depth + 1 - o.num_steps));
    std::vector<double> steps;
    for (int i = 0; i < o.num_steps; ++i) {
      FATHOM_ASSIGN_OR_RETURN(const double ms, sequence.Decode());
      steps.push_back(ms);
    }
    const Spread spread = SpreadOf(steps);
    if (table.rows.empty()) first = spread;
    ratio = spread.median / first.median;
    table.rows.push_back(
        {depth, spread.median, spread.low, spread.high, ratio, spread.low / first.low});
  }
  report.tables.push_back(std::move(table));
  report.summary.emplace_back("deepest_over_first", ratio);
  DescribeMemory(runner->cache(), length, report);
  return report;
}

}  // namespace fathom::bench
