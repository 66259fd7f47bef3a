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

// Enough that a pause between kernels or an event is a small share, few enough for a stream's
// queue.
constexpr int kCalls = 32;
// Of weights, which nothing here reads: the cases of op_cases.h want room for one matrix.
constexpr int64_t kWeightBytes = int64_t{1} << 29;

// One operation, both ways. Goals are of the whole project.
struct Pair {
  const char* fusion = "";
  std::string what;
  double goal = 0.0;
  std::function<Status()> fused = nullptr;
  std::unique_ptr<cuda::Sequence> fused_sequence = nullptr;  // behind `fused`, if no operation is
  std::unique_ptr<cuda::Sequence> unfused = nullptr;
  DeviceBuffer packed = {};  // what both write, where it is no operand
};

struct MakePair {
  CudaBackend& backend;
  const OpCase& op;

  Result<Pair> operator()(std::monostate /*none*/) const {
    return Internal(op.operation + ": has no unfused form");
  }
  Result<Pair> operator()(const CompressInsertArgs& args) const {
    Pair pair{"compressor tail", op.what, 1.4};
    pair.fused = op.run;
    FATHOM_ASSIGN_OR_RETURN(pair.unfused, cuda::MakeUnfused(backend, args));
    return pair;
  }
  Result<Pair> operator()(const QNormRopeKvInsertArgs& args) const {
    Pair pair{"q norm, rope, window insert", op.what, 10.0};
    pair.fused = op.run;
    FATHOM_ASSIGN_OR_RETURN(pair.unfused, cuda::MakeUnfused(backend, args));
    return pair;
  }
  // The product behind it is the same either way, and left out.
  Result<Pair> operator()(const InverseRopeOutArgs& args) const {
    Pair pair{"inverse rope, fp8 output", "without the product", 2.0};
    FATHOM_ASSIGN_OR_RETURN(
        pair.packed,
        backend.memory().Allocate(args.o.size() * static_cast<int64_t>(sizeof(uint16_t))));
    auto* const packed = reinterpret_cast<uint16_t*>(pair.packed.data());
    FATHOM_ASSIGN_OR_RETURN(pair.fused_sequence, cuda::MakeFusedHeads(backend, args, packed));
    pair.fused = [sequence = pair.fused_sequence.get()] { return sequence->Run(); };
    FATHOM_ASSIGN_OR_RETURN(pair.unfused, cuda::MakeUnfusedHeads(backend, args, packed));
    return pair;
  }
};

struct Times {
  std::vector<double> micros;  // of a call, by run
  bool queued_ahead = true;
};

Status Measure(cuda::StreamTimer& timer, const std::function<Status()>& call, Times& times) {
  FATHOM_ASSIGN_OR_RETURN(const cuda::StreamTimer::Time time, timer.Run(call, kCalls));
  times.micros.push_back(time.seconds * 1e6 / kCalls);
  times.queued_ahead = times.queued_ahead && time.queued_ahead;
  return OkStatus();
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
       {"timing",
        std::string("device events around calls that were queued before the device began; "
                    "fused and unfused in turns; no graph")}});
  const std::vector<std::string> only = {"compress_insert", "inverse_rope_out",
                                         "q_norm_rope_kv_insert"};
  std::map<std::string, double> least;  // ratio, by fusion
  for (const int rows : o.rows) {
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<OpCases> cases,
                            OpCases::Create(config, *backend, weights, rows, o.context, only,
                                            /*fp8_o_proj_inputs=*/true));
    ReportTable table{std::to_string(rows) + (rows == 1 ? " row" : " rows"),
                      {"fusion", "what", "fused_us", "fused_low_us", "fused_high_us", "unfused_us",
                       "unfused_low_us", "unfused_high_us", "unfused_kernels", "ratio",
                       "target_ratio", "queued_ahead"},
                      {}};
    for (const OpCase& op : cases->cases()) {
      FATHOM_ASSIGN_OR_RETURN(const Pair pair, std::visit(MakePair{*backend, op}, op.args));
      const auto run_unfused = [&] { return pair.unfused->Run(); };
      Times fused, unfused, unused;
      FATHOM_RETURN_IF_ERROR(Measure(*timer, pair.fused, unused));
      FATHOM_RETURN_IF_ERROR(Measure(*timer, run_unfused, unused));
      for (int i = 0; i < o.repeats; ++i) {
        FATHOM_RETURN_IF_ERROR(Measure(*timer, pair.fused, fused));
        FATHOM_RETURN_IF_ERROR(Measure(*timer, run_unfused, unfused));
      }
      const Spread a = SpreadOf(fused.micros), b = SpreadOf(unfused.micros);
      const double ratio = b.median / a.median;
      table.rows.push_back(
          {std::string(pair.fusion), pair.what, a.median, a.low, a.high, b.median, b.low, b.high,
           int64_t{pair.unfused->num_kernels()}, ratio, pair.goal,
           std::string(fused.queued_ahead && unfused.queued_ahead ? "yes" : "no")});
      const auto [at, is_new] = least.emplace(pair.fusion, ratio);
      if (!is_new) at->second = std::min(at->second, ratio);
    }
    report.tables.push_back(std::move(table));
  }
  report.tables.push_back(limits->Table());
  for (const auto& [fusion, ratio] : least) {
    std::string name = "least_ratio_" + fusion;
    std::erase(name, ',');
    std::replace(name.begin(), name.end(), ' ', '_');
    report.summary.emplace_back(std::move(name), ratio);
  }
  return report;
}

}  // namespace fathom::bench
