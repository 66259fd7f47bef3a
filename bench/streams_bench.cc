#include "bench/streams_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "bench/direct_batch.h"
#include "bench/workload.h"

namespace fathom::bench {
namespace {

struct EngineRun {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<TokenId>> answers;
  // Steps in which every request got its next token and nothing else was computed, and how many
  // tokens each had before the first of them.
  int num_full_steps = 0;
  std::vector<size_t> tokens_before;
  double full_steps_ms = 0.0;
  double whole_ms = 0.0;  // from the requests' arrival to their last token
};

struct Rates {
  std::vector<double> engine, direct, share, whole;
};

double PerSecond(int64_t tokens, double ms) { return static_cast<double>(tokens) * 1e3 / ms; }

Status CheckSizes(const ModelConfig& config, const StreamsBenchOptions& o) {
  // The last of them begins up to a prompt's step for each other later, and all must still run
  // then.
  const int64_t most = o.prompt_tokens + o.output_tokens;
  if (o.prompt_tokens < 1 || o.output_tokens < 2 || most > config.max_position_embeddings) {
    return InvalidArgument(
        "a prompt of " + std::to_string(o.prompt_tokens) + " tokens and " +
        std::to_string(o.output_tokens) +
        " new ones: need at least 1 and 2, and together no more than the model's " +
        std::to_string(config.max_position_embeddings) + " positions");
  }
  return OkStatus();
}

Result<EngineRun> RunEngine(EngineCore& core, int num_streams, int run,
                            const StreamsBenchOptions& o) {
  EngineRun result;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<EngineCore::JobPtr> jobs;
  for (int i = 0; i < num_streams; ++i) {
    result.prompts.push_back(SyntheticTokens(i, o.prompt_tokens, core.info().vocab_size));
    sinks.push_back(std::make_shared<CollectingSink>(o.output_tokens));
    GenerateRequest request = GreedyRequest(result.prompts.back(), o.output_tokens);
    // Every run computes its prompts.
    request.cache_salt = std::to_string(run);
    FATHOM_ASSIGN_OR_RETURN(EngineCore::JobPtr job,
                            core.Prepare(i, std::move(request), sinks.back()));
    jobs.push_back(std::move(job));
  }
  const auto begin = std::chrono::steady_clock::now();
  for (EngineCore::JobPtr& job : jobs) core.Add(std::move(job));
  std::vector<size_t> before(sinks.size());
  while (!core.idle()) {
    for (size_t i = 0; i < sinks.size(); ++i) before[i] = sinks[i]->tokens().size();
    const auto step_begin = std::chrono::steady_clock::now();
    core.Step();
    const double ms = MillisecondsSince(step_begin);
    bool full = true;
    for (size_t i = 0; i < sinks.size(); ++i) {
      full = full && before[i] > 0 && sinks[i]->tokens().size() == before[i] + 1;
    }
    if (!full) continue;
    if (result.num_full_steps++ == 0) result.tokens_before = before;
    result.full_steps_ms += ms;
  }
  result.whole_ms = MillisecondsSince(begin);
  for (const auto& sink : sinks) {
    if (sink->finish().reason != FinishReason::kLength) {
      return sink->finish().error.ok() ? Internal("a request ended early") : sink->finish().error;
    }
    result.answers.push_back(sink->tokens());
  }
  if (result.num_full_steps == 0) {
    return InvalidArgument("the first of " + std::to_string(num_streams) +
                           " requests ends before the last one's prompt is computed; raise "
                           "--output-tokens");
  }
  return result;
}

// The engine's full steps over again; their time.
Result<double> RunDirect(DirectBatch& batch, const EngineRun& run, int vocab_size) {
  const size_t n = run.prompts.size();
  std::vector<std::vector<TokenId>> sequences = run.prompts;
  for (size_t i = 0; i < n; ++i) {
    const auto known = run.answers[i].begin() + static_cast<ptrdiff_t>(run.tokens_before[i]);
    sequences[i].insert(sequences[i].end(), run.answers[i].begin(), known);
  }
  FATHOM_RETURN_IF_ERROR(batch.Start(std::move(sequences)));
  double sum_ms = 0.0;
  std::vector<TokenId> next(n);
  const auto vocab = static_cast<size_t>(vocab_size);
  for (int step = 0; step < run.num_full_steps; ++step) {
    double ms = 0.0;
    FATHOM_RETURN_IF_ERROR(batch.Step(&ms));
    sum_ms += ms;
    for (size_t i = 0; i < n; ++i) {
      next[i] = run.answers[i][run.tokens_before[i] + static_cast<size_t>(step)];
      const std::span<const float> row = batch.logits().subspan(i * vocab, vocab);
      if (std::max_element(row.begin(), row.end()) - row.begin() != next[i]) {
        return Internal("engine and model disagree about token " + std::to_string(step) +
                        " of request " + std::to_string(i));
      }
    }
    batch.Append(next);
  }
  return sum_ms;
}

Report MakeReport(const std::string& model, const EngineCore& core, const StreamsBenchOptions& o,
                  const std::vector<Rates>& rates) {
  Report report;
  report.bench = "streams";
  report.conditions = MachineConditions();
  const LocalEngineOptions& engine = core.options();
  const int threads = engine.num_threads > 0 ? engine.num_threads : DefaultThreadCount();
  report.conditions.insert(report.conditions.end(),
                           {{"model", model},
                            {"backend", engine.backend},
                            {"threads", int64_t{threads}},
                            {"tokens_of_a_step", int64_t{engine.max_batched_tokens}},
                            {"async_scheduling", core.async_scheduling() ? "yes" : "no"},
                            {"prompt_tokens", o.prompt_tokens},
                            {"output_tokens", o.output_tokens},
                            {"repetitions", int64_t{o.repeats}}});
  ReportTable together{"decoding together",
                       {"streams", "engine_tokens_per_s", "engine_low", "engine_high",
                        "direct_tokens_per_s", "share", "share_low", "share_high", "scale"},
                       {}};
  ReportTable whole{
      "prompts and answers", {"streams", "output_tokens_per_s", "low", "high", "scale"}, {}};
  double first = 0.0, first_whole = 0.0, last = 0.0, last_share = 0.0;
  std::string falls = "no";
  for (size_t i = 0; i < rates.size(); ++i) {
    const int64_t n = o.streams[i];
    const Spread rate = SpreadOf(rates[i].engine), all = SpreadOf(rates[i].whole);
    const Spread share = SpreadOf(rates[i].share);
    if (i == 0) first = rate.median, first_whole = all.median;
    if (rate.median < last) falls = "at " + std::to_string(n) + " streams";
    last = rate.median;
    last_share = share.median;
    together.rows.push_back({n, rate.median, rate.low, rate.high, SpreadOf(rates[i].direct).median,
                             share.median, share.low, share.high, rate.median / first});
    whole.rows.push_back({n, all.median, all.low, all.high, all.median / first_whole});
  }
  report.tables = {std::move(together), std::move(whole)};
  report.summary = {{"share_of_" + std::to_string(o.streams.back()) + "_streams", last_share},
                    {"target_share", 0.7},
                    {"throughput_falls", falls}};
  return report;
}

}  // namespace

Result<Report> BenchStreams(const std::filesystem::path& model, const StreamsBenchOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(model));
  FATHOM_RETURN_IF_ERROR(CheckSizes(checkpoint.config(), o));
  const int most = *std::max_element(o.streams.begin(), o.streams.end());
  LocalEngineOptions engine = o.engine;
  engine.max_model_len = o.prompt_tokens + o.output_tokens;
  engine.max_num_seqs = most;
  FATHOM_ASSIGN_OR_RETURN(Checkpoint engine_checkpoint, Checkpoint::Open(model));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<EngineCore> core,
                          EngineCore::Create(std::move(engine_checkpoint), {}, engine));
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<DirectBatch> batch,
      DirectBatch::Create(checkpoint, core->options(), most, engine.max_model_len));
  // Run 0 warms up; the others are counted. All numbers of streams take turns, so that a noisy
  // minute touches each of them.
  std::vector<Rates> rates(o.streams.size());
  for (int run = 0; run <= o.repeats; ++run) {
    for (size_t i = 0; i < o.streams.size(); ++i) {
      const int n = o.streams[i];
      const int id = run * static_cast<int>(o.streams.size()) + static_cast<int>(i);
      FATHOM_ASSIGN_OR_RETURN(const EngineRun result, RunEngine(*core, n, id, o));
      FATHOM_ASSIGN_OR_RETURN(const double direct_ms,
                              RunDirect(*batch, result, core->info().vocab_size));
      if (run == 0) continue;
      const int64_t tokens = int64_t{n} * result.num_full_steps;
      rates[i].engine.push_back(PerSecond(tokens, result.full_steps_ms));
      rates[i].direct.push_back(PerSecond(tokens, direct_ms));
      rates[i].share.push_back(direct_ms / result.full_steps_ms);
      rates[i].whole.push_back(PerSecond(n * o.output_tokens, result.whole_ms));
    }
  }
  return MakeReport(model.filename().string(), *core, o, rates);
}

}  // namespace fathom::bench
