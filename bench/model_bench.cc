#include "bench/model_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/parallel.h"
#include "bench/direct_batch.h"
#include "bench/long_sequence.h"
#include "bench/machine_limits.h"
#include "bench/step_bytes.h"
#include "bench/workload.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {
namespace {

int64_t StepsInAll(const ModelBenchOptions& o) { return int64_t{o.num_steps} * o.repeats; }

// Positions that the longest sequence of each part needs.
int64_t LongestAlone(const ModelBenchOptions& o) {
  int64_t longest = 1;
  if (!o.prefill.empty()) longest = std::max(longest, o.prefill.back());
  if (!o.contexts.empty()) longest = std::max(longest, o.contexts.back() + StepsInAll(o));
  return longest;
}
int64_t LongestTogether(const ModelBenchOptions& o) {
  // The first sequence takes part in the steps of every batch; one step is not measured.
  return o.batch_context + StepsInAll(o) * static_cast<int64_t>(o.batches.size()) + 1;
}

Status Check(const ModelConfig& config, const ModelBenchOptions& o) {
  if (o.prefill.empty() && o.contexts.empty() && o.batches.empty()) {
    return InvalidArgument("neither prompts nor contexts nor batches to measure");
  }
  int64_t before = 0;
  for (const int64_t context : o.contexts) {
    const int64_t least = before == 0 ? 2 : before + StepsInAll(o) + 1;
    if (context < least) {
      return InvalidArgument("context " + std::to_string(context) + ": need one of at least " +
                             std::to_string(least) + ", or fewer steps and repetitions");
    }
    before = context;
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
  ModelBench(Model& model, const CachePlanner& planner, MachineLimits& limits,
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
    FATHOM_RETURN_IF_ERROR(OnePrompt(*runner, std::min(o_.prefill[0], Chunk()), nullptr));
    for (const int64_t length : o_.prefill) {
      Measurement m;
      for (int repeat = 0; repeat < o_.repeats; ++repeat) {
        FATHOM_RETURN_IF_ERROR(MeasureRead(m));
        FATHOM_RETURN_IF_ERROR(OnePrompt(*runner, length, &m));
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
      FATHOM_RETURN_IF_ERROR(sequence.Decode().status());  // not measured: the first at this depth
      Measurement m;
      for (int repeat = 0; repeat < o_.repeats; ++repeat) {
        FATHOM_RETURN_IF_ERROR(MeasureRead(m));
        double ms = 0.0;
        for (int step = 0; step < o_.num_steps; ++step) {
          bytes_.BeginStep();
          const int64_t position = runner->length();
          FATHOM_ASSIGN_OR_RETURN(const double step_ms, sequence.Decode(&bytes_));
          ms += step_ms;
          Count(1, true, m);
          m.cache_bytes += bytes_.CacheBytes(position, 1);
        }
        m.tokens_per_s.push_back(o_.num_steps * 1e3 / ms);
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
    if (const int64_t free = FreeHostMemory(); free > 0 && cache_bytes > free) {
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
    FATHOM_RETURN_IF_ERROR(batch->Step(&ms));  // not measured
    append(most);
    std::vector<Measurement> measurements(o_.batches.size());
    // In turns, so that a disturbance meets all sizes and contexts grow alike.
    for (int repeat = 0; repeat < o_.repeats; ++repeat) {
      for (size_t b = 0; b < o_.batches.size(); ++b) {
        const int n = o_.batches[b];
        Measurement& m = measurements[b];
        FATHOM_RETURN_IF_ERROR(MeasureRead(m));
        double sum_ms = 0.0;
        for (int step = 0; step < o_.num_steps; ++step) {
          for (int i = 0; i < n; ++i) m.cache_bytes += bytes_.CacheBytes(batch->length(i), 1);
          bytes_.BeginStep();
          FATHOM_RETURN_IF_ERROR(batch->Step(n, &ms, &bytes_));
          sum_ms += ms;
          Count(n, true, m);
          append(n);
        }
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

  Status OnePrompt(SequenceRunner& runner, int64_t length, Measurement* m) {
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
                      last ? std::span<float>(logits_) : std::span<float>(), &bytes_));
      ms += MillisecondsSince(start);
      if (m == nullptr) continue;
      Count(n, last, *m);
      m->cache_bytes += bytes_.CacheBytes(begin, n);
    }
    if (m != nullptr) m->tokens_per_s.push_back(static_cast<double>(length) * 1e3 / ms);
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
  MachineLimits& limits_;
  const ModelBenchOptions& o_;
  StepBytes bytes_;
  std::vector<float> logits_;
};

}  // namespace

Result<Report> BenchModel(const std::filesystem::path& model, const ModelBenchOptions& o) {
  if (o.engine.backend == "cuda") {
    return Unimplemented(
        "--backend cuda: the limits that this benchmark sets speeds against are the host's; fathom "
        "bench streams and context measure models on a GPU");
  }
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(model));
  const ModelConfig& config = checkpoint.config();
  FATHOM_RETURN_IF_ERROR(Check(config, o));
  const int threads = o.engine.num_threads > 0 ? o.engine.num_threads : DefaultThreadCount();
  const int max_rows =
      std::max(o.engine.max_batched_tokens, o.batches.empty() ? 1 : o.batches.back());
  const int64_t longest =
      std::max(LongestAlone(o), o.batches.empty() ? int64_t{0} : LongestTogether(o));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<LocalModel> loaded,
                          LocalModel::Load(checkpoint, o.engine, max_rows, longest));
  const WeightsReport& weights = loaded->weights();
  FATHOM_ASSIGN_OR_RETURN(const CachePlanner planner,
                          PlannerFor(config, o.engine.numerics, o.engine.cache_dtypes));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<MachineLimits> limits,
                          MachineLimits::Create(threads));
  Report report;
  report.bench = "model";
  report.conditions = MachineConditions();
  report.conditions.insert(
      report.conditions.end(),
      {{"model", model.filename().string()},
       {"weight_bytes", static_cast<int64_t>(checkpoint.total_bytes())},
       {"weights", std::string(WeightsModeName(weights.mode)) +
                       (weights.exceed_memory ? ", larger than the available memory" : "")},
       {"huge_page_bytes", weights.huge_page_bytes},
       {"memory_nodes", int64_t{weights.num_nodes}},
       {"backend", o.engine.backend},
       {"threads", int64_t{threads}},
       {"chunk_tokens", int64_t{o.engine.max_batched_tokens}},
       {"batch_context_tokens", o.batch_context},
       {"computed_tokens", o.computed_tokens},
       {"steps_per_repetition", int64_t{o.num_steps}},
       {"repetitions", int64_t{o.repeats}},
       {"read_buffer_bytes", limits->buffer_bytes()}});
  ModelBench bench(loaded->model(), planner, *limits, o);
  if (!o.prefill.empty()) FATHOM_RETURN_IF_ERROR(bench.Prefill(report));
  if (!o.contexts.empty()) FATHOM_RETURN_IF_ERROR(bench.Contexts(report));
  if (!o.batches.empty()) FATHOM_RETURN_IF_ERROR(bench.Batches(report));
  report.tables.push_back(limits->Table());
  return report;
}

}  // namespace fathom::bench
