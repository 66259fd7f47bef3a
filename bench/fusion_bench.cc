#include "bench/fusion_bench.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <variant>

#include "backend/cuda/unfused/stream_timer.h"
#include "backend/cuda/unfused/unfused.h"
#include "base/parallel.h"
#include "bench/device_limits.h"
#include "bench/op_cases.h"
#include "model/model.h"

namespace fathom::bench {
namespace {

// Enough that a pause between kernels or an event is a small share. A stream's queue has room for
// about 1,024 launches.
constexpr int kCalls = 32;
constexpr int kLaunches = 700;
// Of weights, which nothing here reads: the cases of op_cases.h want room for one matrix.
constexpr int64_t kWeightBytes = int64_t{1} << 29;

// What an operation is measured against.
struct Baseline {
  const char* name = "";
  std::unique_ptr<cuda::Sequence> sequence = nullptr;
  Cell goal;  // of the whole project, where it has one
};
constexpr char kSteps[] = "steps";                   // a kernel for each step over memory
constexpr char kOperations[] = "tensor operations";  // a kernel for each operation on a tensor

// One operation, all ways.
struct Fusion {
  const char* name = "";
  std::string what;
  std::function<Status()> fused = nullptr;
  std::unique_ptr<cuda::Sequence> fused_sequence = nullptr;  // behind `fused`, if no operation is
  std::vector<Baseline> baselines = {};
  DeviceBuffer packed = {};  // what all write, where it is no operand
};

struct MakeFusion {
  CudaBackend& backend;
  const OpCase& op;

  Result<Fusion> operator()(std::monostate /*none*/) const {
    return Internal(op.operation + ": has no unfused form");
  }
  Result<Fusion> operator()(const CompressInsertArgs& args) const {
    Fusion fusion{"compressor tail", op.what};
    fusion.fused = op.run;
    FATHOM_ASSIGN_OR_RETURN(auto steps, cuda::MakeUnfused(backend, args));
    fusion.baselines.push_back({kSteps, std::move(steps), 1.4});
    return fusion;
  }
  // Its goal is one over what a framework launches.
  Result<Fusion> operator()(const QNormRopeKvInsertArgs& args) const {
    Fusion fusion{"q norm, rope, window insert", op.what};
    fusion.fused = op.run;
    FATHOM_ASSIGN_OR_RETURN(auto steps, cuda::MakeUnfused(backend, args));
    fusion.baselines.push_back({kSteps, std::move(steps), "-"});
    FATHOM_ASSIGN_OR_RETURN(auto operations, cuda::MakeElementwise(backend, args));
    fusion.baselines.push_back({kOperations, std::move(operations), 10.0});
    return fusion;
  }
  // The product behind it is the same either way, and left out.
  Result<Fusion> operator()(const InverseRopeOutArgs& args) const {
    Fusion fusion{"inverse rope, fp8 output", "without the product"};
    FATHOM_ASSIGN_OR_RETURN(
        fusion.packed,
        backend.memory().Allocate(args.o.size() * static_cast<int64_t>(sizeof(uint16_t))));
    auto* const packed = reinterpret_cast<uint16_t*>(fusion.packed.data());
    FATHOM_ASSIGN_OR_RETURN(fusion.fused_sequence, cuda::MakeFusedHeads(backend, args, packed));
    fusion.fused = [sequence = fusion.fused_sequence.get()] { return sequence->Run(); };
    FATHOM_ASSIGN_OR_RETURN(auto steps, cuda::MakeUnfusedHeads(backend, args, packed));
    fusion.baselines.push_back({kSteps, std::move(steps), 2.0});
    return fusion;
  }
};

struct Times {
  std::vector<double> micros;  // of a call, by run
  bool queued_ahead = true;
};

Status Measure(cuda::StreamTimer& timer, const std::function<Status()>& call, int calls,
               Times& times) {
  FATHOM_ASSIGN_OR_RETURN(const cuda::StreamTimer::Time time, timer.Run(call, calls));
  times.micros.push_back(time.seconds * 1e6 / calls);
  times.queued_ahead = times.queued_ahead && time.queued_ahead;
  return OkStatus();
}

Status Measure(cuda::StreamTimer& timer, cuda::Sequence& sequence, Times& times) {
  const int calls = std::clamp(kLaunches / std::max(sequence.num_kernels(), 1), 1, kCalls);
  return Measure(
      timer, [&] { return sequence.Run(); }, calls, times);
}

// Fused and every baseline in turns, `repeats` times; the first turn is not counted. Times of the
// baselines are in their order.
struct Turns {
  Times fused;
  std::vector<Times> baselines;
};
Result<Turns> MeasureTurns(cuda::StreamTimer& timer, const Fusion& fusion, int repeats) {
  Turns turns;
  for (int i = 0; i <= repeats; ++i) {
    if (i <= 1) turns = {{}, std::vector<Times>(fusion.baselines.size())};
    FATHOM_RETURN_IF_ERROR(Measure(timer, fusion.fused, kCalls, turns.fused));
    for (size_t b = 0; b < fusion.baselines.size(); ++b) {
      FATHOM_RETURN_IF_ERROR(Measure(timer, *fusion.baselines[b].sequence, turns.baselines[b]));
    }
  }
  return turns;
}

}  // namespace

Result<Report> BenchFusions(const ModelConfig& config, const FusionBenchOptions& o) {
  if (o.backend != "cuda") {
    return InvalidArgument("--backend " + o.backend +
                           ": fused and unfused operations are the cuda backend's");
  }
  const int most = *std::max_element(o.rows.begin(), o.rows.end());
  if (o.context + most > config.max_position_embeddings) {
    return InvalidArgument(std::to_string(most) + " rows behind a context of " +
                           std::to_string(o.context) + ": the model has " +
                           std::to_string(config.max_position_embeddings) + " positions");
  }
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<CudaBackend> backend,
                          CudaBackend::Create(Numerics::kOfficial));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Limits> limits, MakeDeviceLimits());
  FATHOM_RETURN_IF_ERROR(limits->MeasureCompute());
  FATHOM_RETURN_IF_ERROR(limits->MeasureRead(1).status());
  FATHOM_RETURN_IF_ERROR(backend->Prepare(BackendLimitsFor(config, most, o.context + most)));
  FATHOM_ASSIGN_OR_RETURN(const MemoryState state, backend->memory().State());
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<cuda::StreamTimer> timer,
                          cuda::StreamTimer::Create(*backend));
  ThreadPool pool(DefaultThreadCount());
  WeightMemory weights(pool, backend->memory(), kWeightBytes);

  Report report;
  report.bench = "fusions";
  report.conditions = MachineConditions();
  report.conditions.insert(
      report.conditions.end(),
      {{"backend", std::string(backend->name())},
       {"device", state.name},
       {"context_tokens", o.context},
       {"repetitions", int64_t{o.repeats}},
       {"calls", int64_t{kCalls}},
       {"launches", int64_t{kLaunches}},
       {"timing",
        std::string("device events around calls that were queued before the device began; "
                    "fused ones and baselines in turns; no graph")}});
  const std::vector<std::string> only = {"compress_insert", "inverse_rope_out",
                                         "q_norm_rope_kv_insert"};
  std::map<std::string, double> least;  // ratio, by fusion and baseline
  for (const int rows : o.rows) {
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<OpCases> cases,
                            OpCases::Create(config, *backend, weights, rows, o.context, only,
                                            /*fp8_o_proj_inputs=*/true));
    ReportTable table{std::to_string(rows) + (rows == 1 ? " row" : " rows"),
                      {"fusion", "what", "baseline", "fused_us", "fused_low_us", "fused_high_us",
                       "baseline_us", "baseline_low_us", "baseline_high_us", "baseline_kernels",
                       "ratio", "target_ratio", "queued_ahead"},
                      {}};
    for (const OpCase& op : cases->cases()) {
      FATHOM_ASSIGN_OR_RETURN(const Fusion fusion, std::visit(MakeFusion{*backend, op}, op.args));
      FATHOM_ASSIGN_OR_RETURN(const Turns turns, MeasureTurns(*timer, fusion, o.repeats));
      const Spread fused = SpreadOf(turns.fused.micros);
      for (size_t b = 0; b < fusion.baselines.size(); ++b) {
        const Baseline& baseline = fusion.baselines[b];
        const Times& times = turns.baselines[b];
        const Spread spread = SpreadOf(times.micros);
        const double ratio = spread.median / fused.median;
        table.rows.push_back(
            {std::string(fusion.name), fusion.what, std::string(baseline.name), fused.median,
             fused.low, fused.high, spread.median, spread.low, spread.high,
             int64_t{baseline.sequence->num_kernels()}, ratio, baseline.goal,
             std::string(turns.fused.queued_ahead && times.queued_ahead ? "yes" : "no")});
        const std::string name = std::string(fusion.name) + " over " + baseline.name;
        const auto [at, is_new] = least.emplace(name, ratio);
        if (!is_new) at->second = std::min(at->second, ratio);
      }
    }
    report.tables.push_back(std::move(table));
  }
  report.tables.push_back(limits->Table());
  for (const auto& [pair, ratio] : least) {
    std::string name = "least_ratio_" + pair;
    std::erase(name, ',');
    std::replace(name.begin(), name.end(), ' ', '_');
    report.summary.emplace_back(std::move(name), ratio);
  }
  return report;
}

}  // namespace fathom::bench
