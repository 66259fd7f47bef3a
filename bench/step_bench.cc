#include "bench/step_bench.h"

#include <algorithm>
#include <memory>
#include <string>

#include "bench/workload.h"
#include "engine/scheduler.h"
#include "engine/sequence_runner.h"
#include "engine/step_builder.h"

namespace fathom::bench {
namespace {

constexpr int kChunk = 8192;                      // of the prompts, which are not measured
constexpr int64_t kMaxTokens = int64_t{1} << 29;  // of all sequences: 2 GiB of ids

class DecodingBatch {
 public:
  DecodingBatch(const ModelConfig& config, int num_sequences)
      : config_(config), requests_(static_cast<size_t>(num_sequences)) {}

  // Sequences of `context` tokens, some less each: they do not begin blocks in the same step.
  Status Start(int64_t context, int64_t num_steps) {
    const auto n = static_cast<int>(requests_.size());
    const CachePlanner planner(CacheLayout(CacheGeometryOf(config_), Numerics::kOfficial));
    BlockManagerOptions options;
    options.max_sequences = n;
    options.max_positions = context;
    options.max_step_positions = kChunk;
    FATHOM_ASSIGN_OR_RETURN(
        manager_, BlockManager::Create(
                      planner, planner.BytesFor(n + 1, context) / planner.slab_bytes(), options));
    const PrefixKey seed = PrefixSeed("bench");
    for (size_t i = 0; i < requests_.size(); ++i) {
      ScheduledRequest& r = requests_[i];
      const int64_t known = context - num_steps - static_cast<int64_t>(i) % kBlockPositions;
      r.tokens = SyntheticTokens(static_cast<int64_t>(i), known, config_.vocab_size);
      r.tokens.reserve(static_cast<size_t>(context));
      r.num_prompt = known;
      r.keys = PrefixKeys(seed, "", r.tokens);
      r.keys.Reserve(context / kBlockPositions);
      FATHOM_RETURN_IF_ERROR(LeaveCached(r));
    }
    // They find all but their last token, and decode together from the first step on.
    SchedulerOptions scheduler;
    scheduler.max_num_seqs = n;
    scheduler.max_batched_tokens = std::max(n, 512);
    scheduler_ = std::make_unique<Scheduler>(*manager_, scheduler);
    builder_ = std::make_unique<StepBuilder>(scheduler.max_batched_tokens, n, pages_);
    for (ScheduledRequest& r : requests_) scheduler_->Add(&r);
    return Step() == n ? OkStatus() : Internal("a sequence did not find its cached prompt");
  }

  // Rows of the step that was planned.
  int Step() {
    const std::span<const ScheduledRows> rows = scheduler_->Schedule();
    manager_->ClearCopies();
    const int num_rows = builder_->Build(rows, *manager_).num_rows();
    scheduler_->Commit();
    return num_rows;
  }
  // What a sampler would add.
  void AppendTokens() {
    for (ScheduledRequest& r : requests_) {
      if (r.sequence >= 0 && r.computed == static_cast<int64_t>(r.tokens.size())) {
        r.tokens.push_back(static_cast<TokenId>(r.computed % config_.vocab_size));
      }
    }
  }

 private:
  // Computes a prompt alone and leaves it to be found.
  Status LeaveCached(ScheduledRequest& r) {
    PrefixKeys keys = r.keys;
    const auto known = static_cast<int64_t>(r.tokens.size());
    const std::optional<SequenceId> id = manager_->Admit({}, &keys, known);
    bool done = id.has_value();
    for (int64_t at = 0; done && at < known - 1;) {
      at = std::min(at + kChunk, known - 1);
      done = manager_->Extend(*id, at);
      if (done) manager_->Commit(*id, r.tokens);
    }
    if (!done || !manager_->Keep(*id, r.tokens, known - 1)) {
      return Internal("the cache has no room for its sequences");
    }
    manager_->Release(*id);
    return OkStatus();
  }

  const ModelConfig& config_;
  std::vector<ScheduledRequest> requests_;
  const std::vector<LayerPages> pages_;  // none: nothing is computed
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepBuilder> builder_;
};

Status Check(const ModelConfig& config, const StepBenchOptions& o) {
  const int64_t steps = int64_t{o.num_steps} * o.repeats;
  for (const int64_t context : o.contexts) {
    if (context > config.max_position_embeddings) {
      return InvalidArgument("a context of " + std::to_string(context) + " tokens: the model has " +
                             std::to_string(config.max_position_embeddings) + " positions");
    }
    if (context < steps + 2 * kBlockPositions) {
      return InvalidArgument("a context of " + std::to_string(context) +
                             " tokens: " + std::to_string(steps) + " steps need one of at least " +
                             std::to_string(steps + 2 * kBlockPositions));
    }
    if (context > kMaxTokens / o.num_sequences) {
      return InvalidArgument(std::to_string(o.num_sequences) + " sequences of " +
                             std::to_string(context) + " tokens: more than the " +
                             std::to_string(kMaxTokens) + " that are kept in memory");
    }
  }
  return OkStatus();
}

}  // namespace

Result<Report> BenchStep(const ModelConfig& config, const StepBenchOptions& o) {
  FATHOM_RETURN_IF_ERROR(Check(config, o));
  Report report;
  report.bench = "step";
  report.conditions = MachineConditions();
  report.conditions.insert(report.conditions.end(), {{"layers", int64_t{config.num_layers}},
                                                     {"threads", int64_t{1}},
                                                     {"time", std::string("CPU time")},
                                                     {"steps_per_repetition", int64_t{o.num_steps}},
                                                     {"repetitions", int64_t{o.repeats}}});
  ReportTable table{"planning of a decode step",
                    {"sequences", "context_tokens", "median_us", "low_us", "high_us", "p99_us"},
                    {}};
  double slowest = 0.0;
  for (const int64_t context : o.contexts) {
    DecodingBatch batch(config, o.num_sequences);
    // One step more: the first is not measured.
    FATHOM_RETURN_IF_ERROR(batch.Start(context, int64_t{o.num_steps} * o.repeats + 1));
    std::vector<double> means, all;
    for (int repeat = 0; repeat < o.repeats; ++repeat) {
      double sum = 0.0;
      for (int step = 0; step < o.num_steps; ++step) {
        batch.AppendTokens();
        const double begin = ThreadCpuMicroseconds();
        const int rows = batch.Step();
        all.push_back(ThreadCpuMicroseconds() - begin);
        sum += all.back();
        if (rows != o.num_sequences) return Internal("a sequence was left out of a step");
      }
      means.push_back(sum / o.num_steps);
    }
    // Of means: a block is begun in some steps only, and that belongs to what a step costs.
    const Spread spread = SpreadOf(means);
    std::sort(all.begin(), all.end());
    table.rows.push_back({int64_t{o.num_sequences}, context, spread.median, spread.low, spread.high,
                          all[all.size() * 99 / 100]});
    slowest = std::max(slowest, spread.median);
  }
  report.tables.push_back(std::move(table));
  report.summary = {{"slowest_median_us", slowest}, {"target_us_of_256_sequences", 200.0}};
  return report;
}

}  // namespace fathom::bench
