// How a model is loaded and run in this process. Plain data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/communicator.h"
#include "backend/cpu/cpu_options.h"
#include "backend/numerics.h"
#include "base/host_memory.h"
#include "base/thread_placement.h"
#include "cache/cache_layout.h"
#include "cache/retention.h"
#include "checkpoint/weight_memory.h"
#include "engine/cache_sizing.h"
#include "engine/memory_plan.h"
#include "model/step_graphs.h"

namespace fathom {

struct LocalEngineOptions {
  std::string backend = "cpu";  // "cpu", "cuda", "reference", or "plugin": that of the next line
  std::string backend_plugin;   // a shared library (backend/plugin/), with "plugin" only
  CpuOptions cpu;               // of the cpu backend; the others take none
  int cuda_device = 0;          // GPU of "cuda", as the CUDA runtime counts; 0 with others
  // What this process's part of the model tells the others'; absent: it has the whole model.
  std::shared_ptr<Communicator> communicator;
  int num_threads = 0;  // 0: DefaultThreadCount(); one with "cuda" or "plugin"
  NumaMode numa = NumaMode::kAuto;
  WeightsMode weights = WeightsMode::kMmap;
  // What of a device's weights lies in memory of the host; for backends that read it there.
  ExpertOffload expert_offload;
  // How often experts were used (engine/expert_use_file.h): those that were least are the first to
  // leave the device. Empty: as many of every layer.
  std::filesystem::path expert_profile;
  // Where to write how often they are used, when the model goes; empty: nothing is counted.
  std::filesystem::path record_expert_use;
  // Which steps are recorded and done again (model/step_graphs.h), on backends that can. Absent:
  // GraphOptions' own; given, another backend is refused unless it says kNone.
  std::optional<GraphOptions> graphs;
  // The next step begins before the host knows what the one before sampled. Absent: where the
  // backend runs behind (backend/runs_behind.h) and nothing else is asked for that prevents it.
  // True is refused where it cannot be.
  std::optional<bool> async_scheduling;
  // Nothing of a step is done beside something else (Model::SerialiseStreams); for debugging.
  bool serial_streams = false;
  // Called while weights are read, by the thread that loads; may be absent.
  std::function<void(uint64_t done, uint64_t total)> load_progress;
  // What memory there is; absent: ReadHostMemory(). Tests make it small.
  std::optional<HostMemory> memory;
  // What to compute on in place of `backend`; absent but in tests.
  std::function<Result<std::unique_ptr<Backend>>(Numerics)> make_backend;
  Numerics numerics = Numerics::kOfficial;
  // Inputs of wo_a in e4m3 (Model::QuantiseOProjInputs).
  bool fp8_o_proj_inputs = false;
  int64_t max_model_len = 0;     // 0: the model's, or what fits into the cache
  int max_batched_tokens = 512;  // tokens of one step
  int max_num_seqs = 0;  // requests that run together; 0: 256, or max_batched_tokens if less
  int max_queued_requests = 1024;  // waiting ones; more get kUnavailable
  bool priority_scheduling = false;
  CacheBudget cache_budget;
  std::optional<CacheDTypes> cache_dtypes;  // absent: what goes with the numerics
  bool prefix_caching = true;
  int64_t retention_interval = kDefaultRetentionInterval;  // cache/retention.h
  // Requests without a seed get one that follows from this and their id. Absent: a random one.
  std::optional<int64_t> seed;
};

}  // namespace fathom
