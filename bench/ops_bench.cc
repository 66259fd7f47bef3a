#include "bench/ops_bench.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "base/parallel.h"
#include "bench/make_limits.h"
#include "bench/op_cases.h"
#include "bench/workload.h"
#include "engine/engine_core.h"
#include "engine/plugin_factory.h"

namespace fathom::bench {
namespace {

constexpr int kMostRuns = 20'000;
// Of a device: calls that one wait follows, so that launches overlap with work before them and the
// wait's own time (some 10 us) is a small share of each run.
constexpr double kLeastRunMs = 1.0;
constexpr int kMostCalls = 1 << 12;

LocalEngineOptions EngineOptions(const OpsBenchOptions& o) {
  LocalEngineOptions engine;
  engine.backend = o.backend;
  engine.backend_plugin = o.backend_plugin;
  engine.num_threads = o.num_threads;
  engine.cpu = o.cpu;
  engine.fp8_o_proj_inputs = o.fp8_o_proj_inputs;
  return engine;
}

Status CheckOptions(const ModelConfig& config, const OpsBenchOptions& o) {
  if (o.cpu.int8_dense) return InvalidArgument("weights that come in turn have no int8 copies");
  FATHOM_RETURN_IF_ERROR(CheckBackendOptions(EngineOptions(o)));
  const std::vector<std::string> names = OperationNames();
  for (const std::string& name : o.only) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    std::string known;
    for (const std::string& n : names) known += (known.empty() ? "" : ", ") + n;
    return InvalidArgument("operation '" + name + "': known ones are " + known);
  }
  const int most = *std::max_element(o.rows.begin(), o.rows.end());
  if (o.context + most > config.max_position_embeddings) {
    return InvalidArgument(std::to_string(most) + " rows behind a context of " +
                           std::to_string(o.context) + ": the model has " +
                           std::to_string(config.max_position_embeddings) + " positions");
  }
  return OkStatus();
}

// Free memory, where the system says, of what will hold weights and activations.
Status CheckRoom(const ModelConfig& config, const OpsBenchOptions& o, int64_t free) {
  if (free <= 0) return OkStatus();
  if (o.memory_bytes > free / 2) {
    return OutOfMemory("weights of " + std::to_string(o.memory_bytes) +
                       " bytes are more than half of the free memory of " + std::to_string(free) +
                       "; lower --memory");
  }
  const int most = *std::max_element(o.rows.begin(), o.rows.end());
  // All cases have their activations at once: a generous estimate of those of a token, in values.
  const int64_t values = 8 * int64_t{config.num_heads} * config.head_dim +
                         12 * int64_t{config.hc_mult} * config.hidden_size +
                         8 * int64_t{config.o_groups} * config.o_lora_rank +
                         8 * int64_t{config.index_num_heads} * config.index_head_dim +
                         4 * int64_t{config.index_topk} + 16 * int64_t{config.head_dim};
  if (most * values > free / 4 / static_cast<int64_t>(sizeof(float))) {
    return OutOfMemory("activations of " + std::to_string(most) +
                       " rows need more than a quarter of the free memory of " +
                       std::to_string(free) + " bytes; lower --rows");
  }
  return OkStatus();
}

// A device's operations return before they are done: a run of it is `calls` of them and a wait.
Result<double> RunMilliseconds(const OpCase& op, Backend& backend, int calls) {
  const auto start = std::chrono::steady_clock::now();
  for (int call = 0; call < calls; ++call) FATHOM_RETURN_IF_ERROR(op.run());
  FATHOM_RETURN_IF_ERROR(backend.Synchronize());
  return MillisecondsSince(start);
}

// Calls of a run; the operation is called, and not measured, until they are known.
Result<int> CallsOfARun(const OpCase& op, Backend& backend) {
  FATHOM_RETURN_IF_ERROR(RunMilliseconds(op, backend, 1).status());
  if (backend.memory().host_readable()) return 1;
  for (int calls = 1;; calls *= 2) {
    FATHOM_ASSIGN_OR_RETURN(const double ms, RunMilliseconds(op, backend, calls));
    if (ms >= kLeastRunMs || calls >= kMostCalls) return calls;
  }
}

// Microseconds of a call, of each run.
Result<std::vector<double>> Time(const OpCase& op, Backend& backend, const OpsBenchOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(const int calls, CallsOfARun(op, backend));
  std::vector<double> micros;
  const auto begin = std::chrono::steady_clock::now();
  while (static_cast<int>(micros.size()) < o.repeats ||
         (MillisecondsSince(begin) < o.time_ms && micros.size() < kMostRuns)) {
    FATHOM_ASSIGN_OR_RETURN(const double ms, RunMilliseconds(op, backend, calls));
    micros.push_back(ms * 1e3 / calls);
  }
  return micros;
}

Result<std::unique_ptr<Backend>> BackendOf(const OpsBenchOptions& o) {
  if (o.backend != "plugin") {
    return MakeBackend(o.backend, Numerics::kOfficial, o.num_threads, o.cpu);
  }
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakePluginBackend(EngineOptions(o)));
  if (backend->memory().host_readable()) return backend;
  return Unimplemented("--backend-plugin " + o.backend_plugin +
                       ": has a memory of its own, and what that device can read and compute at "
                       "most is not known here");
}

}  // namespace

std::vector<std::string> OperationNames() { return OpCases::Names(); }

Result<Report> BenchOps(const ModelConfig& config, const OpsBenchOptions& o) {
  FATHOM_RETURN_IF_ERROR(CheckOptions(config, o));
  const int threads = o.num_threads > 0 ? o.num_threads : DefaultThreadCount();
  const int most = *std::max_element(o.rows.begin(), o.rows.end());
  const int64_t host_free = FreeHostMemory();
  if (o.backend != "cuda") FATHOM_RETURN_IF_ERROR(CheckRoom(config, o, host_free));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, BackendOf(o));
  const bool on_host = backend->memory().host_readable();
  std::string device = "host";
  if (!on_host) {
    FATHOM_ASSIGN_OR_RETURN(const MemoryState state, backend->memory().State());
    FATHOM_RETURN_IF_ERROR(CheckRoom(config, o, state.free_bytes));
    device = state.name;
    // The host makes a ring at a time.
    if (const int64_t ring = o.memory_bytes / WeightMemory::kNumFormats;
        host_free > 0 && ring > host_free / 2) {
      return OutOfMemory("a ring of " + std::to_string(ring) +
                         " bytes is made in the host's memory first, of which " +
                         std::to_string(host_free) + " are free; lower --memory");
    }
  }
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Limits> limits,
                          MakeLimits(on_host, threads, /*cuda_device=*/0));
  ThreadPool pool(threads);
  WeightMemory weights(pool, backend->memory(), o.memory_bytes);
  FATHOM_RETURN_IF_ERROR(backend->Prepare(BackendLimitsFor(config, most, o.context + most)));

  Report report;
  report.bench = "ops";
  report.conditions = MachineConditions();
  report.conditions.insert(
      report.conditions.end(),
      {{"backend", std::string(backend->name())},
       {"device", device},
       {"threads", int64_t{threads}},
       {"fp4_inputs", std::string(o.cpu.int8_activations ? "int8" : "official")},
       {"o_proj_inputs", std::string(o.fp8_o_proj_inputs ? "fp8" : "bf16")},
       {"context_tokens", o.context},
       {"weights", std::string("random, taken in turn from a ring of each format")},
       {"weight_ring_bytes", weights.ring_bytes()},
       {"last_level_cache_bytes", limits->cache_bytes()},
       {"experts", int64_t{config.num_experts}},
       {"repetitions", int64_t{o.repeats}},
       {"time_ms", int64_t{o.time_ms}},
       {"timing", std::string(on_host ? "host clock, each call alone"
                                      : "host clock over calls in a row and one wait, a "
                                        "millisecond or more; no graph")},
       {"read_buffer_bytes", limits->buffer_bytes()}});
  FATHOM_RETURN_IF_ERROR(limits->MeasureCompute());
  for (const int rows : o.rows) {
    FATHOM_ASSIGN_OR_RETURN(
        const std::unique_ptr<OpCases> cases,
        OpCases::Create(config, *backend, weights, rows, o.context, o.only, o.fp8_o_proj_inputs));
    ReportTable table{std::to_string(rows) + (rows == 1 ? " row" : " rows"),
                      {"operation", "what", "median_us", "low_us", "high_us", "runs",
                       "weight_bytes", "cache_bytes", "activation_bytes", "flop", "gb_per_s",
                       "gflop_per_s", "share_of_read", "share_of_fp32"},
                      {}};
    for (const OpCase& op : cases->cases()) {
      FATHOM_ASSIGN_OR_RETURN(const double before, limits->MeasureRead(1));
      FATHOM_ASSIGN_OR_RETURN(const std::vector<double> micros, Time(op, *backend, o));
      FATHOM_ASSIGN_OR_RETURN(const double after, limits->MeasureRead(1));
      const double read = std::max(before, after);
      FATHOM_RETURN_IF_ERROR(limits->MeasureCompute());
      const Spread spread = SpreadOf(micros);
      const int64_t bytes = op.weight_bytes + op.cache_bytes + op.activation_bytes;
      const double gb_per_s = static_cast<double>(bytes) / spread.median * 1e-3;
      const double gflop_per_s = op.flop / spread.median * 1e-3;
      const double fp32 = limits->fp32();
      table.rows.push_back({op.operation, op.what, spread.median, spread.low, spread.high,
                            static_cast<int64_t>(micros.size()), op.weight_bytes, op.cache_bytes,
                            op.activation_bytes, op.flop, gb_per_s, gflop_per_s, gb_per_s / read,
                            fp32 > 0.0 ? gflop_per_s / fp32 : 0.0});
    }
    report.tables.push_back(std::move(table));
  }
  report.tables.push_back(limits->Table());
  return report;
}

}  // namespace fathom::bench
