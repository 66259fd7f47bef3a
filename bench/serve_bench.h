// BenchServe: load on a running server, fathom or another, as its clients see it (bench/load).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "bench/load/load_run.h"
#include "bench/load/workload.h"
#include "bench/report.h"

namespace fathom::bench {

struct ServeBenchOptions {
  load::LoadOptions load;
  load::WorkloadOptions workload;     // without model: the first one that the server lists
  std::string workload_name;          // for the report
  int64_t num_warmups = 0;            // conversations that are not measured
  std::optional<int64_t> server_pid;  // of this machine; its CPU time is part of the report
};

struct ServeBenchResult {
  Report report;
  load::LoadResult load;
};

// Fails where nothing could be measured; requests that failed are in the report.
Result<ServeBenchResult> BenchServe(ServeBenchOptions options);

// What a load says about a server; `cpu_seconds` is the server's.
Report ServeReport(const ServeBenchOptions& options, const load::LoadResult& result,
                   std::optional<double> cpu_seconds);

// CPU time that a process of this machine has used so far, all its threads.
Result<double> ProcessCpuSeconds(int64_t pid);

}  // namespace fathom::bench
