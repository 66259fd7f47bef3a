// LocalModel: a model with what it runs on in this process: threads, a backend, and its weights
// where the options want them.
//
// What engines, tools and benchmarks load. Single-threaded: owned by whoever runs the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "backend/backend.h"
#include "base/host_memory.h"
#include "base/parallel.h"
#include "checkpoint/checkpoint.h"
#include "engine/local_engine_options.h"
#include "engine/memory_plan.h"
#include "model/model.h"

namespace fathom {

// "cpu", "cuda" or "reference"; kInvalidArgument names the known ones. Threads are the cpu
// backend's.
Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             int num_threads, const CpuOptions& cpu = {});
// On a pool that outlives the backend; "cuda" on that GPU.
Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             ThreadPool& pool, const CpuOptions& cpu,
                                             int cuda_device);
// kInvalidArgument, naming the option, for what the chosen backend has no use for and for options
// that exclude each other.
Status CheckBackendOptions(const LocalEngineOptions& options);

// What became of the weights, for whoever tells the user.
struct WeightsReport {
  WeightsMode mode = WeightsMode::kMmap;
  uint64_t bytes = 0;
  int num_files = 0;
  HostMemory memory;  // before they were read
  // Mapped weights that are larger than the available memory, so that parts of them are read again
  // and again. They are not read ahead.
  bool exceed_memory = false;
  bool expert_prefetch = false;  // chosen experts are asked for (model/expert_prefetch.h)
  uint64_t expert_bytes = 0;     // of all routed experts of the main layers
  // Bytes that one decoded token reads: chosen experts, and everything else.
  uint64_t token_expert_bytes = 0;
  uint64_t token_dense_bytes = 0;
  int64_t huge_page_bytes = 0;   // with kHugePages, what the system gave
  std::string huge_page_policy;  // with kHugePages: HugePagePolicy()
  int num_nodes = 1;             // that threads and copied weights are shared out to
  // Of a backend whose memory is not the host's: what it is called, what of the files is there, and
  // what of them in memory of the host that it reads.
  std::string device;
  int64_t device_bytes = 0;
  int64_t pinned_bytes = 0;
  std::optional<MemoryPlan> plan;  // what was expected of it
};

// Memory that weights take beside their mapped files.
struct WeightDemand {
  uint64_t copied = 0;  // by --weights copy and hugepages
  uint64_t int8 = 0;    // by --cpu-dense int8
  [[nodiscard]] uint64_t total() const { return copied + int8; }
};
WeightDemand DemandOf(const LocalEngineOptions& options, const Checkpoint& checkpoint);
// kInvalidArgument, naming the option and the sizes, when that does not fit into the memory
// available. Where the system does not say how much that is, it may.
Status CheckWeightsFit(const LocalEngineOptions& options, const WeightDemand& demand);

// Memory of a device that is for a cache beside the model.
struct CacheDemand {
  int64_t wanted_bytes = 0;  // what experts leave the device for, where the options let them
  int64_t least_bytes = 0;   // without which nothing is loaded
};

// All of it for `num_sequences` of up to `length` tokens, in the options' formats.
Result<CacheDemand> CacheDemandOf(const ModelConfig& config, const LocalEngineOptions& options,
                                  int64_t num_sequences, int64_t length);

class LocalModel {
 public:
  // Writes the record of experts, where the options ask for one; a failure is told on standard
  // error.
  ~LocalModel();

  // Copies `checkpoint`'s weights or reads them ahead, as the options say. It must outlive the
  // model. Weights that are to be in a device's memory are copied there instead. Installs the
  // process's fault guard, so that files that go away meanwhile are an error. Steps of up to
  // `max_rows` tokens, sequences of up to `max_positions`. What does not fit into a device beside
  // `cache` is refused before anything is copied. Errors also as CheckWeightsFit, PlanMemory,
  // ReadExpertUse and Checkpoint::CopyToMemory.
  static Result<std::unique_ptr<LocalModel>> Load(Checkpoint& checkpoint,
                                                  const LocalEngineOptions& options, int max_rows,
                                                  int64_t max_positions,
                                                  const CacheDemand& cache = {});
  // With threads as this placement says, in place of what the options and the machine make of it.
  static Result<std::unique_ptr<LocalModel>> Load(Checkpoint& checkpoint,
                                                  const LocalEngineOptions& options, int max_rows,
                                                  int64_t max_positions, ThreadPlacement placement);
  // The same in two parts, for who sizes things by the backend's memory in between: threads and
  // backend, then weights and model.
  static Result<std::unique_ptr<LocalModel>> Open(const LocalEngineOptions& options);
  Status LoadModel(Checkpoint& checkpoint, const LocalEngineOptions& options, int max_rows,
                   int64_t max_positions, const CacheDemand& cache = {});

  [[nodiscard]] ThreadPool& pool() { return pool_; }
  [[nodiscard]] Backend& backend() { return *backend_; }
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] const WeightsReport& weights() const { return weights_; }

 private:
  explicit LocalModel(ThreadPlacement placement) : pool_(std::move(placement)) {}
  static Result<std::unique_ptr<LocalModel>> Open(const LocalEngineOptions& options,
                                                  ThreadPlacement placement);
  Status LoadWeights(Checkpoint& checkpoint, const LocalEngineOptions& options);
  void SetUpPrefetch();
  // Where a device's experts lie. `config` is the checkpoint's.
  Result<ExpertPlacement> PlaceExperts(const ModelConfig& config, const LocalEngineOptions& options,
                                       int max_rows, int64_t max_positions,
                                       const CacheDemand& cache);
  Status StartRecord(const LocalEngineOptions& options);

  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Communicator> communicator_;  // nullptr: there is one rank
  std::unique_ptr<Model> model_;
  WeightsReport weights_;
  std::filesystem::path record_;  // empty: none is kept
};

}  // namespace fathom
