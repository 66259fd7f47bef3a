#include "bench/serve_bench.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <utility>

#include "bench/load/model_query.h"

namespace fathom::bench {
namespace {

using load::LatencyHistogram;
using load::LoadResult;

// A socket each: the usual soft limit of 1024 would end thousands of streams.
void RaiseFileLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

double Ratio(double part, double whole) { return whole > 0.0 ? part / whole : 0.0; }

std::vector<Cell> LatencyRow(const char* name, const LatencyHistogram& times) {
  return {std::string(name),       times.count(),           times.mean_ms(),
          times.PercentileMs(0.5), times.PercentileMs(0.9), times.PercentileMs(0.99),
          times.max_ms()};
}

void AddConditions(const ServeBenchOptions& options, const LoadResult& result, Report* report) {
  const load::WorkloadOptions& work = options.workload;
  const auto add = [report](const char* name, Cell cell) {
    report->conditions.emplace_back(name, std::move(cell));
  };
  report->conditions = MachineConditions();
  add("base_url", "http://" + options.load.url.Authority() + options.load.url.path);
  add("endpoint", std::string(load::EndpointName(work.endpoint)));
  add("model", work.model.empty() ? std::string("of the bodies") : work.model);
  add("workload", options.workload_name);
  if (!work.bodies) {
    add("input_tokens", work.input_tokens);
    add("range_ratio", work.range_ratio);
    add("prefix_tokens", work.prefix_tokens);
    add("prefix_groups", int64_t{work.num_prefixes});
    add("turns", int64_t{work.turns});
  }
  if (work.max_tokens) add("max_tokens", *work.max_tokens);
  add("seed", static_cast<int64_t>(options.load.seed));
  if (options.load.max_concurrency) add("concurrency", int64_t{*options.load.max_concurrency});
  if (options.load.request_rate) add("request_rate", *options.load.request_rate);
  if (result.was_stopped) add("interrupted", std::string("yes"));
}

}  // namespace

Report ServeReport(const ServeBenchOptions& options, const LoadResult& result,
                   std::optional<double> cpu_seconds) {
  Report report;
  report.bench = "serve";
  AddConditions(options, result, &report);

  ReportTable times{"times of requests",
                    {"time", "count", "mean_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms"},
                    {}};
  times.rows = {LatencyRow("to the first token (TTFT)", result.first_token),
                LatencyRow("between chunks (ITL)", result.chunk_times),
                LatencyRow("per token behind the first (TPOT)", result.token_times),
                LatencyRow("whole request (E2E)", result.whole)};
  ReportTable statuses{"answers", {"status", "requests"}, {}};
  for (const auto& [status, count] : result.by_status) {
    statuses.rows.push_back({status == 0 ? "none" : std::to_string(status), count});
  }
  report.tables = {std::move(times), std::move(statuses)};
  if (!result.errors.empty()) {
    ReportTable errors{"errors", {"kind", "requests", "first_message"}, {}};
    for (const auto& [kind, same] : result.errors) {
      errors.rows.push_back({kind, same.count, same.example});
    }
    report.tables.push_back(std::move(errors));
  }

  const double seconds = std::chrono::duration<double>(result.duration).count();
  const auto output = static_cast<double>(result.output_tokens);
  const auto prompt = static_cast<double>(result.prompt_tokens);
  report.summary = {{"requests_ok", result.num_ok},
                    {"requests_failed", result.num_failed},
                    {"requests_cancelled", result.num_cancelled},
                    {"most_at_once", int64_t{result.most_at_once}},
                    {"duration_s", seconds},
                    {"requests_per_s", Ratio(static_cast<double>(result.num_ok), seconds)},
                    {"prompt_tokens", result.prompt_tokens},
                    {"output_tokens", result.output_tokens},
                    {"chunks", result.num_chunks},
                    {"output_tokens_per_s", Ratio(output, seconds)},
                    {"total_tokens_per_s", Ratio(output + prompt, seconds)},
                    {"cached_tokens", result.cached_tokens},
                    {"prefix_hit_rate", Ratio(static_cast<double>(result.cached_tokens), prompt)}};
  if (result.num_without_usage > 0) {
    report.summary.emplace_back("requests_without_usage", result.num_without_usage);
  }
  if (cpu_seconds) {
    report.summary.emplace_back("server_cpu_s", *cpu_seconds);
    report.summary.emplace_back("server_cpu_us_per_token", Ratio(*cpu_seconds * 1e6, output));
  }
  return report;
}

Result<double> ProcessCpuSeconds(int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::ifstream file(path);
  std::string text;
  if (!std::getline(file, text)) {
    return NotFound("process " + std::to_string(pid) + ": cannot read " + path);
  }
  // The program's name is in parentheses and may hold anything; user and system time are the 12th
  // and 13th field behind it.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return DataLoss(path + ": not as expected");
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0.0, system = 0.0;
  if (!(fields >> user >> system)) return DataLoss(path + ": not as expected");
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Result<ServeBenchResult> BenchServe(ServeBenchOptions options) {
  RaiseFileLimit();
  if (options.workload.model.empty() && !options.workload.bodies) {
    const auto patience = std::min(options.load.timeout, std::chrono::milliseconds(30'000));
    FATHOM_ASSIGN_OR_RETURN(options.workload.model,
                            load::FirstModel(options.load.url, options.load.api_key, patience));
  }
  FATHOM_ASSIGN_OR_RETURN(const load::Workload workload, load::Workload::Create(options.workload));
  if (options.num_warmups > 0) {
    load::LoadOptions warmup = options.load;
    warmup.num_conversations = options.num_warmups;
    warmup.request_rate.reset();
    FATHOM_ASSIGN_OR_RETURN(const LoadResult ignored, load::RunLoad(warmup, workload));
  }
  std::optional<double> cpu_seconds;
  if (options.server_pid) {
    FATHOM_ASSIGN_OR_RETURN(cpu_seconds, ProcessCpuSeconds(*options.server_pid));
  }
  FATHOM_ASSIGN_OR_RETURN(LoadResult result, load::RunLoad(options.load, workload));
  if (options.server_pid) {
    // A server that has gone meanwhile shows in the errors; its time is lost.
    const Result<double> after = ProcessCpuSeconds(*options.server_pid);
    cpu_seconds = after.ok() ? std::optional(*after - *cpu_seconds) : std::nullopt;
  }
  Report report = ServeReport(options, result, cpu_seconds);
  return ServeBenchResult{std::move(report), std::move(result)};
}

}  // namespace fathom::bench
