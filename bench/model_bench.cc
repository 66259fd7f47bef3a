#include "bench/model_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "bench/answer_speeds.h"
#include "bench/direct_batch.h"
#include "bench/graphs_bench.h"
#include "bench/lanes_bench.h"
#include "bench/long_sequence.h"
#include "bench/make_limits.h"
#include "bench/step_bytes.h"
#include "bench/workload.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {
namespace {

// Whoever watches a device's steps brings every layer's values to the host and is no part of a
// speed: there a repetition more, which is not timed, counts the bytes of each line.
bool CountsApart(const ModelBenchOptions& o) { return o.engine.backend == "cuda"; }
int FirstRepeat(const ModelBenchOptions& o) { return CountsApart(o) ? -1 : 0; }

int64_t StepsInAll(const ModelBenchOptions& o) {
  return int64_t{o.num_steps} * (o.repeats - FirstRepeat(o));
}

// Positions that the longest sequence of each part needs.
int64_t LongestAlone(const ModelBenchOptions& o) {
  int64_t longest = 1;
  if (!o.prefill.empty()) longest = std::max(longest, o.prefill.back());
  if (!o.contexts.empty()) {
    longest = std::max(longest, o.contexts.back() + kWarmSteps - 1 + StepsInAll(o));
  }
  return std::max({longest, AnswersLength(o.graph_contexts, o), AnswersLength(o.lane_contexts, o)});
}
int64_t LongestTogether(const ModelBenchOptions& o) {
  // The first sequence takes part in the steps of every batch.
  return o.batch_context + (kWarmSteps + StepsInAll(o)) * static_cast<int64_t>(o.batches.size());
}

Status Check(const ModelConfig& config, const ModelBenchOptions& o) {
  if (o.prefill.empty() && o.contexts.empty() && o.batches.empty() && o.graph_contexts.empty() &&
      o.lane_contexts.empty()) {
    return InvalidArgument("neither prompts nor contexts nor batches to measure");
  }
  for (const std::vector<int64_t>& contexts : {o.contexts, o.graph_contexts, o.lane_contexts}) {
    int64_t before = 0;
    for (const int64_t context : contexts) {
      const int64_t least = before == 0 ? 2 : before + kWarmSteps + StepsInAll(o);
      if (context < least) {
        return InvalidArgument("context " + std::to_string(context) + ": need one of at least " +
                               std::to_string(least) + ", or fewer steps and repetitions");
      }
      before = context;
    }
  }
  if (!o.batches.empty() && o.batch_context < 2) {
    return InvalidArgument("batch context " + std::to_string(o.batch_context) +
                           ": need one of at least 2");
  }
  const int64_t longest =
      std::max(LongestAlone(o), o.batches.empty() ? int64_t{0} : LongestTogether(o));
  if (longest > config.max_position_embeddings) {
    return InvalidArgument("sequences of " + std::to_string(longest) + " tokens: the model has " +
                           std::to_string(config.max_position_embeddings) + " positions");
  }
  if (o.computed_tokens < kBlockPositions || o.computed_tokens % kBlockPositions != 0) {
    return InvalidArgument("computed tokens: " + std::to_string(o.computed_tokens) +
                           " are not whole blocks of " + std::to_string(kBlockPositions));
  }
  return OkStatus();
}

// What one line of a table is made of: repetitions, each of some tokens.
struct Measurement {
  std::vector<double> tokens_per_s;
  double read_limit = 0.0;  // GB/s, the best pass between its repetitions
  int64_t tokens = 0;
  int64_t weight_bytes = 0;
  int64_t cache_bytes = 0;
  int64_t experts = 0;  // different ones of a layer, summed over layers and steps
  int64_t steps = 0;
};

const std::vector<std::string> kColumns = {"median_tokens_per_s",
                                           "low",
                                           "high",
                                           "experts_per_layer",
                                           "weight_bytes_per_token",
                                           "cache_bytes_per_token",
                                           "gb_per_s",
                                           "read_limit_gb_per_s",
                                           "share_of_read"};

ReportTable Table(const char* name, const char* first) {
  ReportTable table{name, {first}, {}};
  table.columns.insert(table.columns.end(), kColumns.begin(), kColumns.end());
  return table;
}

class ModelBench {
 public:
  ModelBench(Model& model, const CachePlanner& planner, Limits& limits,
             const ModelBenchOptions& options)
      : model_(model),
        config_(model.config()),
        planner_(planner),
        limits_(limits),
        o_(options),
        bytes_(model.config(), planner.layout()),
        logits_(static_cast<size_t>(model.config().vocab_size)) {}

  Status Prefill(Report& report) {
    ReportTable table = Table("prefill", "prompt_tokens");
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceRunner> runner, NewRunner());
    // Once without measuring: memory that is touched for the first time, threads that wake up.
    FATHOM_RETURN_IF_ERROR(OnePrompt(*runner, std::min(o_.prefill[0], Chunk()), 0, nullptr));
    for (const int64_t length : o_.prefill) {
      Measurement m;
      for (int repeat = FirstRepeat(o_); repeat < o_.repeats; ++repeat) {
        FATHOM_RETURN_IF_ERROR(MeasureRead(m));
        FATHOM_RETURN_IF_ERROR(OnePrompt(*runner, length, repeat, &m));
        // Of steps that are recorded, the second of a kind is.
        for (int warm = 0; repeat < 0 && warm < 2; ++warm) {
          FATHOM_RETURN_IF_ERROR(OnePrompt(*runner, length, repeat, nullptr));
        }
      }
      FATHOM_RETURN_IF_ERROR(AddRow(length, m, table).status());
    }
    report.tables.push_back(std::move(table));
    return OkStatus();
  }

  Status Contexts(Report& report) {
    ReportTable table = Table("decode", "context_tokens");
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceRunner> runner, NewRunner());
    LongSequence sequence(*runner, config_.vocab_size, static_cast<int>(Chunk()),
                          o_.computed_tokens);
    double at_512 = 0.0;
    for (const int64_t context : o_.contexts) {
      FATHOM_RETURN_IF_ERROR(sequence.GoTo(context - 1));
      for (int step = 0; step < kWarmSteps; ++step) {
        FATHOM_RETURN_IF_ERROR(sequence.Decode().status());
      }
      Measurement m;
      for (int repeat = FirstRepeat(o_); repeat < o_.repeats; ++repeat) {
        FATHOM_RETURN_IF_ERROR(MeasureRead(m));
        double ms = 0.0;
        for (int step = 0; step < o_.num_steps; ++step) {
          bytes_.BeginStep();
          const int64_t position = runner->length();
          FATHOM_ASSIGN_OR_RETURN(const double step_ms, sequence.Decode(Observer(repeat)));
          ms += step_ms;
          if (!Counts(repeat)) continue;
          Count(1, true, m);
          m.cache_bytes += bytes_.CacheBytes(position, 1);
        }
        if (repeat >= 0) m.tokens_per_s.push_back(o_.num_steps * 1e3 / ms);
      }
      FATHOM_ASSIGN_OR_RETURN(const double speed, AddRow(context, m, table));
      if (context == 512) at_512 = speed;
      if (context > 512 && at_512 > 0.0) {
        report.summary.emplace_back("decode_at_" + std::to_string(context) + "_over_512",
                                    speed / at_512);
      }
    }
    report.tables.push_back(std::move(table));
    return OkStatus();
  }

  Status Batches(Report& report) {
    const int most = o_.batches.back();
    const int64_t cache_bytes = planner_.BytesFor(most, LongestTogether(o_));
    FATHOM_ASSIGN_OR_RETURN(const int64_t free, FreeMemory());
    if (free > 0 && cache_bytes > free) {
      return OutOfMemory("the caches of " + std::to_string(most) + " answers need " +
                         std::to_string(cache_bytes) + " bytes, the free memory is " +
                         std::to_string(free) + "; lower --batch or --batch-context");
    }
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<DirectBatch> batch,
                            DirectBatch::Create(model_, o_.engine, most, LongestTogether(o_)));
    std::vector<std::vector<TokenId>> prompts;
    for (int i = 0; i < most; ++i) {
      prompts.push_back(SyntheticTokens(i + 1, o_.batch_context, config_.vocab_size));
    }
    FATHOM_RETURN_IF_ERROR(batch->Start(std::move(prompts)));
    int64_t stream = most;
    const auto append = [&](int n) {
      batch->Append(SyntheticTokens(++stream, n, config_.vocab_size));
    };
    double ms = 0.0;
    for (const int n : o_.batches) {
      for (int step = 0; step < kWarmSteps; ++step) {
        FATHOM_RETURN_IF_ERROR(batch->Step(n, &ms));
        append(n);
      }
    }
    std::vector<Measurement> measurements(o_.batches.size());
    // In turns, so that a disturbance meets all sizes and contexts grow alike.
    for (int repeat = FirstRepeat(o_); repeat < o_.repeats; ++repeat) {
      for (size_t b = 0; b < o_.batches.size(); ++b) {
        const int n = o_.batches[b];
        Measurement& m = measurements[b];
        FATHOM_RETURN_IF_ERROR(MeasureRead(m));
        double sum_ms = 0.0;
        for (int step = 0; step < o_.num_steps; ++step) {
          for (int i = 0; i < n && Counts(repeat); ++i) {
            m.cache_bytes += bytes_.CacheBytes(batch->length(i), 1);
          }
          bytes_.BeginStep();
          FATHOM_RETURN_IF_ERROR(batch->Step(n, &ms, Observer(repeat)));
          sum_ms += ms;
          if (Counts(repeat)) Count(n, true, m);
          append(n);
        }
        if (repeat < 0) continue;
        m.tokens_per_s.push_back(int64_t{n} * o_.num_steps * 1e3 / sum_ms);
      }
    }
    ReportTable table = Table("decode together", "batch");
    for (size_t b = 0; b < o_.batches.size(); ++b) {
      FATHOM_RETURN_IF_ERROR(AddRow(o_.batches[b], measurements[b], table).status());
    }
    report.tables.push_back(std::move(table));
    return OkStatus();
  }

 private:
  [[nodiscard]] int64_t Chunk() const { return o_.engine.max_batched_tokens; }
  Result<std::unique_ptr<SequenceRunner>> NewRunner() {
    return SequenceRunner::Create(model_, o_.engine.numerics, LongestAlone(o_),
                                  o_.engine.cache_dtypes);
  }

  // Repetitions from 0 on are timed.
  [[nodiscard]] bool Counts(int repeat) const { return !CountsApart(o_) || repeat < 0; }
  ForwardObserver* Observer(int repeat) { return Counts(repeat) ? &bytes_ : nullptr; }
  // Of what has the cache; 0 where the system does not say.
  Result<int64_t> FreeMemory() {
    DeviceMemory& memory = model_.backend().memory();
    if (memory.host_readable()) return FreeHostMemory();
    FATHOM_ASSIGN_OR_RETURN(const MemoryState state, memory.State());
    return state.free_bytes;
  }

  Status OnePrompt(SequenceRunner& runner, int64_t length, int repeat, Measurement* m) {
    runner.Clear();
    const std::vector<TokenId> tokens = SyntheticTokens(0, length, config_.vocab_size);
    double ms = 0.0;
    for (int64_t begin = 0; begin < length; begin += Chunk()) {
      const auto n = static_cast<int>(std::min(Chunk(), length - begin));
      const bool last = begin + n == length;
      bytes_.BeginStep();
      const auto start = std::chrono::steady_clock::now();
      FATHOM_RETURN_IF_ERROR(
          runner.Step(std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(n)),
                      last ? SequenceRunner::Logits::kLast : SequenceRunner::Logits::kNone,
                      last ? std::span<float>(logits_) : std::span<float>(),
                      m == nullptr ? nullptr : Observer(repeat)));
      ms += MillisecondsSince(start);
      if (m == nullptr || !Counts(repeat)) continue;
      Count(n, last, *m);
      m->cache_bytes += bytes_.CacheBytes(begin, n);
    }
    if (m != nullptr && repeat >= 0) {
      m->tokens_per_s.push_back(static_cast<double>(length) * 1e3 / ms);
    }
    return OkStatus();
  }

  Status MeasureRead(Measurement& m) {
    FATHOM_ASSIGN_OR_RETURN(const double gb_per_s, limits_.MeasureRead(2));
    m.read_limit = std::max(m.read_limit, gb_per_s);
    return OkStatus();
  }

  void Count(int num_rows, bool has_logits, Measurement& m) {
    m.tokens += num_rows;
    m.weight_bytes += bytes_.WeightBytes(num_rows, has_logits);
    m.experts += bytes_.num_experts();
    ++m.steps;
  }

  // The median speed.
  Result<double> AddRow(int64_t first, const Measurement& m, ReportTable& table) {
    const Spread speed = SpreadOf(m.tokens_per_s);
    const auto tokens = static_cast<double>(m.tokens);
    const double weights = static_cast<double>(m.weight_bytes) / tokens;
    const double cache = static_cast<double>(m.cache_bytes) / tokens;
    const double gb_per_s = (weights + cache) * speed.median * 1e-9;
    table.rows.push_back(
        {first, speed.median, speed.low, speed.high,
         static_cast<double>(m.experts) / static_cast<double>(m.steps * config_.num_layers),
         static_cast<int64_t>(weights), static_cast<int64_t>(cache), gb_per_s, m.read_limit,
         gb_per_s / m.read_limit});
    FATHOM_RETURN_IF_ERROR(limits_.MeasureCompute());
    return speed.median;
  }

  Model& model_;
  const ModelConfig& config_;
  const CachePlanner& planner_;
  Limits& limits_;
  const ModelBenchOptions& o_;
  StepBytes bytes_;
  std::vector<float> logits_;
};

// Where weights lie, in words.
std::string DescribeWeights(const WeightsReport& weights, bool is_synthetic) {
  if (!weights.device.empty()) {
    return (is_synthetic ? "made on " : "copied to ") + weights.device;
  }
  if (is_synthetic) return "made in memory";
  return std::string(WeightsModeName(weights.mode)) +
         (weights.exceed_memory ? ", larger than the available memory" : "");
}

// Which steps are recorded, in vLLM's words.
std::string DescribeGraphs(const Model& model) {
  const StepGraphs* const graphs = model.graphs();
  return std::string(GraphModeName(graphs == nullptr ? GraphMode::kNone : graphs->mode()));
}

// What a device was expected to have taken by the model, and what it has.
void DescribeMemory(const WeightsReport& weights, int64_t used_bytes, Report& report) {
  if (!weights.plan) return;
  const MemoryPlan& plan = *weights.plan;
  const int64_t planned = plan.device_weight_bytes + plan.step_bytes;
  report.summary.insert(
      report.summary.end(),
      {{"device_bytes_planned", planned},
       {"device_bytes_used", used_bytes},
       {"used_over_planned", static_cast<double>(used_bytes) / static_cast<double>(planned)},
       {"device_weight_bytes", weights.device_bytes},
       {"host_expert_bytes_planned", plan.host_weight_bytes},
       {"host_expert_bytes", weights.pinned_bytes},
       {"experts_on_host", plan.num_host_experts},
       {"experts", plan.weights.num_experts}});
}

Result<Report> Bench(Checkpoint& checkpoint, const std::string& name, const ModelBenchOptions& o) {
  const ModelConfig& config = checkpoint.config();
  FATHOM_RETURN_IF_ERROR(Check(config, o));
  const int threads = o.engine.num_threads > 0 ? o.engine.num_threads : DefaultThreadCount();
  const int most_together = o.batches.empty() ? 0 : o.batches.back();
  const int max_rows = std::max(o.engine.max_batched_tokens, most_together);
  const int64_t together = o.batches.empty() ? 0 : LongestTogether(o);
  FATHOM_ASSIGN_OR_RETURN(const CachePlanner planner,
                          PlannerFor(config, o.engine.numerics, o.engine.cache_dtypes));
  // The parts' caches come one after the other.
  const int64_t cache_bytes =
      std::max(planner.BytesFor(1, LongestAlone(o)), planner.BytesFor(most_together, together));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<LocalModel> loaded, LocalModel::Open(o.engine));
  DeviceMemory& memory = loaded->backend().memory();
  if (o.engine.backend == "plugin" && !memory.host_readable()) {
    return Unimplemented("--backend-plugin " + o.engine.backend_plugin +
                         ": has a memory of its own, and the limits that this benchmark would set "
                         "speeds against are not known");
  }
  FATHOM_RETURN_IF_ERROR(CheckGraphs(loaded->backend(), o));
  FATHOM_RETURN_IF_ERROR(CheckLanes(loaded->backend(), o));
  FATHOM_ASSIGN_OR_RETURN(const MemoryState before, memory.State());
  FATHOM_RETURN_IF_ERROR(loaded->LoadModel(checkpoint, o.engine, max_rows,
                                           std::max(LongestAlone(o), together),
                                           {cache_bytes, cache_bytes}));
  FATHOM_ASSIGN_OR_RETURN(const MemoryState after, memory.State());
  const WeightsReport& weights = loaded->weights();
  const bool on_host = memory.host_readable();
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Limits> limits,
                          MakeLimits(on_host, threads, o.engine.cuda_device));
  Report report;
  report.bench = "model";
  report.conditions = MachineConditions();
  report.conditions.insert(report.conditions.end(),
                           {{"model", name},
                            {"layers", int64_t{config.num_layers}},
                            {"weight_bytes", static_cast<int64_t>(checkpoint.total_bytes())},
                            {"weights", DescribeWeights(weights, checkpoint.is_synthetic())},
                            {"huge_page_bytes", weights.huge_page_bytes},
                            {"memory_nodes", int64_t{weights.num_nodes}},
                            {"backend", std::string(loaded->backend().name())},
                            {"graph_mode", DescribeGraphs(loaded->model())},
                            {"threads", int64_t{threads}},
                            {"chunk_tokens", int64_t{o.engine.max_batched_tokens}},
                            {"batch_context_tokens", o.batch_context},
                            {"computed_tokens", o.computed_tokens},
                            {"steps_per_repetition", int64_t{o.num_steps}},
                            {"repetitions", int64_t{o.repeats}},
                            {"read_buffer_bytes", limits->buffer_bytes()}});
  DescribeMemory(weights, before.free_bytes - after.free_bytes, report);
  ModelBench bench(loaded->model(), planner, *limits, o);
  if (!o.prefill.empty()) FATHOM_RETURN_IF_ERROR(bench.Prefill(report));
  if (!o.contexts.empty()) FATHOM_RETURN_IF_ERROR(bench.Contexts(report));
  if (!o.batches.empty()) FATHOM_RETURN_IF_ERROR(bench.Batches(report));
  if (!o.graph_contexts.empty()) FATHOM_RETURN_IF_ERROR(BenchGraphs(loaded->model(), o, report));
  if (!o.lane_contexts.empty()) FATHOM_RETURN_IF_ERROR(BenchLanes(loaded->model(), o, report));
  report.tables.push_back(limits->Table());
  return report;
}

}  // namespace

Result<Report> BenchModel(const std::filesystem::path& model, const ModelBenchOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(model));
  return Bench(checkpoint, model.filename().string(), o);
}

Result<Report> BenchModel(const SyntheticModel& model, const ModelBenchOptions& o) {
  if (o.engine.weights != WeightsMode::kMmap) {
    return InvalidArgument("--weights " + std::string(WeightsModeName(o.engine.weights)) +
                           ": synthetic weights are made in memory, there is nothing to copy");
  }
  ModelConfig config = model.config;
  config.mtp_compress_ratios.clear();
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Synthetic(config, model.seed));
  return Bench(checkpoint, model.name + ", synthetic, seed " + std::to_string(model.seed), o);
}

}  // namespace fathom::bench
