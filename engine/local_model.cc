#include "engine/local_model.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "backend/pinned_memory.h"
#include "base/fault_guard.h"
#include "checkpoint/inventory.h"
#include "engine/expert_use_file.h"
#include "engine/plugin_factory.h"
#include "engine/synthetic_writer.h"

namespace fathom {
namespace {

HostMemory MemoryOf(const LocalEngineOptions& options) {
  return options.memory ? *options.memory : ReadHostMemory();
}

// Refuses, naming the option, what a backend that reads no memory of the host has no use for.
Status CheckOffloadOptions(const LocalEngineOptions& options, Backend& backend) {
  if (PinnedMemoryOf(backend) != nullptr) return OkStatus();
  const std::string why = ": the " + std::string(backend.name()) +
                          " backend has all weights in one memory; experts outside of it are the "
                          "cuda backend's";
  // None in host memory is what it does anyway.
  if (options.expert_offload.asked && options.expert_offload.bytes.value_or(1) > 0) {
    return InvalidArgument("--expert-offload" + why);
  }
  if (!options.expert_profile.empty()) return InvalidArgument("--expert-profile" + why);
  return OkStatus();
}

// Refuses recorded steps, where they were asked for, on a backend that records none.
Status CheckGraphOptions(const LocalEngineOptions& options, Backend& backend) {
  if (!options.graphs || options.graphs->mode == GraphMode::kNone) return OkStatus();
  if (RecordingOf(backend) != nullptr) return OkStatus();
  return InvalidArgument(
      "--compilation-config cudagraph_mode " + std::string(GraphModeName(options.graphs->mode)) +
      ": the " + std::string(backend.name()) + " backend records no steps; NONE, or leave it out");
}

}  // namespace

WeightDemand DemandOf(const LocalEngineOptions& options, const Checkpoint& checkpoint) {
  WeightDemand demand;
  if (options.weights != WeightsMode::kMmap || checkpoint.is_synthetic()) {
    demand.copied = checkpoint.total_bytes();
  }
  if (options.cpu.int8_dense) {
    // A byte and its share of the fp32 scale of 128 columns for each code.
    for (const StoredTensor& tensor : checkpoint.tensors()) {
      if (tensor.dtype != DType::kF8E4M3) continue;
      demand.int8 += tensor.data.size() + tensor.data.size() / 32;
    }
  }
  return demand;
}

Status CheckWeightsFit(const LocalEngineOptions& options, const WeightDemand& demand) {
  const HostMemory memory = MemoryOf(options);
  if (demand.total() == 0 || !memory.known()) return OkStatus();
  if (demand.total() <= static_cast<uint64_t>(memory.available_bytes)) return OkStatus();
  const std::string there = " take " + Gigabytes(demand.total()) + ", and of " +
                            Gigabytes(static_cast<uint64_t>(memory.total_bytes)) + " memory " +
                            Gigabytes(static_cast<uint64_t>(memory.available_bytes)) +
                            " is available; ";
  if (demand.int8 > 0) {
    return InvalidArgument("--cpu-dense int8: the copies of weights" + there +
                           "--cpu-dense stored makes none of fp8 matrices");
  }
  if (options.weights == WeightsMode::kMmap) {
    return OutOfMemory("synthetic weights" + there + "make fewer layers of them (--layers)");
  }
  return InvalidArgument("--weights " + std::string(WeightsModeName(options.weights)) +
                         ": the weights" + there +
                         "--weights mmap uses them in place and runs also when they are larger "
                         "than memory");
}

Result<CacheDemand> CacheDemandOf(const ModelConfig& config, const LocalEngineOptions& options,
                                  int64_t num_sequences, int64_t length) {
  FATHOM_ASSIGN_OR_RETURN(const CachePlanner planner,
                          PlannerFor(config, options.numerics, options.cache_dtypes));
  const int64_t bytes = planner.BytesFor(num_sequences, length);
  return CacheDemand{bytes, bytes};
}

Result<std::unique_ptr<LocalModel>> LocalModel::Open(const LocalEngineOptions& options) {
  // A device needs none but its caller's.
  const bool device = options.backend == "cuda" || options.backend == "plugin";
  const int threads = device                    ? 1
                      : options.num_threads > 0 ? options.num_threads
                                                : DefaultThreadCount();
  return Open(options, PlaceThreads(std::min(threads, ThreadPool::kMaxThreads), options.numa,
                                    ReadCpuTopology()));
}

Result<std::unique_ptr<LocalModel>> LocalModel::Open(const LocalEngineOptions& options,
                                                     ThreadPlacement placement) {
  FATHOM_RETURN_IF_ERROR(CheckBackendOptions(options));
  std::unique_ptr<LocalModel> local(new LocalModel(std::move(placement)));
  if (options.make_backend) {
    FATHOM_ASSIGN_OR_RETURN(local->backend_, options.make_backend(options.numerics));
  } else if (options.backend == "plugin") {
    FATHOM_ASSIGN_OR_RETURN(local->backend_, MakePluginBackend(options));
  } else {
    FATHOM_ASSIGN_OR_RETURN(
        local->backend_, MakeBackend(options.backend, options.numerics, local->pool_, options.cpu,
                                     options.cuda_device));
  }
  FATHOM_RETURN_IF_ERROR(CheckOffloadOptions(options, *local->backend_));
  FATHOM_RETURN_IF_ERROR(CheckGraphOptions(options, *local->backend_));
  return local;
}

LocalModel::~LocalModel() {
  if (record_.empty() || model_ == nullptr || model_->expert_use() == nullptr) return;
  const Status status = WriteExpertUse(record_, *model_->expert_use());
  if (!status.ok()) std::fprintf(stderr, "fathom: %s\n", status.message().c_str());
}

Result<std::unique_ptr<LocalModel>> LocalModel::Load(Checkpoint& checkpoint,
                                                     const LocalEngineOptions& options,
                                                     int max_rows, int64_t max_positions,
                                                     const CacheDemand& cache) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<LocalModel> local, Open(options));
  FATHOM_RETURN_IF_ERROR(local->LoadModel(checkpoint, options, max_rows, max_positions, cache));
  return local;
}

Result<std::unique_ptr<LocalModel>> LocalModel::Load(Checkpoint& checkpoint,
                                                     const LocalEngineOptions& options,
                                                     int max_rows, int64_t max_positions,
                                                     ThreadPlacement placement) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<LocalModel> local, Open(options, std::move(placement)));
  FATHOM_RETURN_IF_ERROR(local->LoadModel(checkpoint, options, max_rows, max_positions));
  return local;
}

Status LocalModel::LoadModel(Checkpoint& checkpoint, const LocalEngineOptions& options,
                             int max_rows, int64_t max_positions, const CacheDemand& cache) {
  InstallFaultGuard();
  if (!options.record_expert_use.empty()) {
    FATHOM_RETURN_IF_ERROR(CheckCanWriteExpertUse(options.record_expert_use));
  }
  DeviceMemory& memory = backend_->memory();
  WeightUpload upload;
  upload.progress = options.load_progress;
  SyntheticWriter synthetic(checkpoint, *backend_);
  if (checkpoint.is_synthetic()) upload.writer = &synthetic;
  if (!memory.host_readable()) {
    FATHOM_ASSIGN_OR_RETURN(upload.placement, PlaceExperts(checkpoint.config(), options, max_rows,
                                                           max_positions, cache));
  }
  FATHOM_RETURN_IF_ERROR(LoadWeights(checkpoint, options));
  communicator_ = options.communicator;
  FATHOM_ASSIGN_OR_RETURN(model_, Model::Create(checkpoint, *backend_, max_rows, max_positions,
                                                upload, communicator_.get()));
  if (options.fp8_o_proj_inputs) FATHOM_RETURN_IF_ERROR(model_->QuantiseOProjInputs());
  if (!memory.host_readable()) {
    FATHOM_ASSIGN_OR_RETURN(const MemoryState state, memory.State());
    weights_.device = state.name;
    weights_.device_bytes = model_->weights().moved_bytes();
    weights_.pinned_bytes = model_->weights().pinned_bytes();
    // Zeros in place of lost bytes would be on the device by now.
    FATHOM_RETURN_IF_ERROR(checkpoint.CheckFiles());
  } else if (options.weights == WeightsMode::kMmap && !checkpoint.is_synthetic()) {
    SetUpPrefetch();
  }
  FATHOM_RETURN_IF_ERROR(StartRecord(options));
  model_->SerialiseStreams(options.serial_streams);
  return RecordingOf(*backend_) == nullptr
             ? OkStatus()
             : model_->RecordSteps(options.graphs.value_or(GraphOptions()));
}

Status LocalModel::StartRecord(const LocalEngineOptions& options) {
  if (options.record_expert_use.empty()) return OkStatus();
  FATHOM_RETURN_IF_ERROR(model_->CountExpertUse());
  record_ = options.record_expert_use;
  return OkStatus();
}

Result<ExpertPlacement> LocalModel::PlaceExperts(const ModelConfig& config,
                                                 const LocalEngineOptions& options, int max_rows,
                                                 int64_t max_positions, const CacheDemand& cache) {
  FATHOM_RETURN_IF_ERROR(CheckDeviceBudget(options.cache_budget));
  ExpertUse use(config);
  if (!options.expert_profile.empty()) {
    FATHOM_ASSIGN_OR_RETURN(use, ReadExpertUse(options.expert_profile, config));
  }
  MemoryDemand demand;
  demand.backend = backend_->name();
  demand.max_rows = max_rows;
  demand.max_positions = max_positions;
  demand.cache_bytes = cache.wanted_bytes;
  demand.least_cache_bytes = cache.least_bytes;
  demand.offload = options.expert_offload;
  demand.counts_experts = !options.record_expert_use.empty();
  MemoryBudget budget;
  FATHOM_ASSIGN_OR_RETURN(budget.device, backend_->memory().State());
  budget.usable_bytes = UsableDeviceBytes(options.cache_budget, budget.device);
  budget.limit_bytes =
      options.cache_budget.bytes > 0 ? budget.device.free_bytes : budget.usable_bytes;
  if (DeviceMemory* const pinned = PinnedMemoryOf(*backend_); pinned != nullptr) {
    budget.has_pinned_memory = true;
    FATHOM_ASSIGN_OR_RETURN(const MemoryState host, pinned->State());
    if (host.free_bytes > 0) budget.host_bytes = host.free_bytes;
  }
  FATHOM_ASSIGN_OR_RETURN(weights_.plan, PlanMemory(config, demand, budget));
  return ExpertPlacement(use, weights_.plan->num_host_experts);
}

Status LocalModel::LoadWeights(Checkpoint& checkpoint, const LocalEngineOptions& options) {
  if (backend_->memory().host_readable()) {
    FATHOM_RETURN_IF_ERROR(CheckWeightsFit(options, DemandOf(options, checkpoint)));
  }
  WeightsReport& report = weights_;
  report.mode = options.weights;
  report.bytes = checkpoint.total_bytes();
  report.num_files = checkpoint.num_files();
  report.memory = MemoryOf(options);
  report.num_nodes = pool_.placement().num_nodes();
  for (const PartBytes& part : InventoryOf(checkpoint.config())) {
    const bool experts = part.part == Part::kRoutedExperts;
    (experts ? report.token_expert_bytes : report.token_dense_bytes) += part.bytes_per_token;
    if (experts) report.expert_bytes = part.main_bytes;
  }
  // A device's are read once, by the copy.
  if (!backend_->memory().host_readable()) return OkStatus();
  const auto progress = options.load_progress ? options.load_progress : [](uint64_t, uint64_t) {};
  if (checkpoint.is_synthetic()) {
    checkpoint.MakeTensors(pool_, progress);
    return OkStatus();
  }
  if (options.weights == WeightsMode::kMmap) {
    const auto available = static_cast<uint64_t>(report.memory.available_bytes);
    report.exceed_memory = report.bytes > available;
    // What fits is read ahead, so that the wait for the disk is here and not at the first token.
    if (!report.exceed_memory) checkpoint.Preload(pool_, progress);
    return OkStatus();
  }
  CopyOptions copy;
  copy.huge_pages = options.weights == WeightsMode::kHugePages;
  copy.progress = progress;
  FATHOM_RETURN_IF_ERROR(checkpoint.CopyToMemory(pool_, copy));
  if (copy.huge_pages) {
    report.huge_page_bytes = checkpoint.HugePageBytes();
    report.huge_page_policy = HugePagePolicy();
  }
  return OkStatus();
}

void LocalModel::SetUpPrefetch() {
  // A quarter of the memory: the experts of one layer are used before the next ones are asked for,
  // and what every token reads should stay.
  const auto available = static_cast<uint64_t>(weights_.memory.available_bytes);
  const uint64_t most = std::max(available / 4, uint64_t{256} << 20);
  auto prefetch = std::make_unique<ExpertPrefetch>(model_->weights(), most);
  // Reading ahead may have pushed out what it had read, where memory is short.
  if (!weights_.exceed_memory && prefetch->AllInMemory()) return;
  weights_.expert_prefetch = true;
  model_->SetExpertPrefetch(std::move(prefetch));
}

}  // namespace fathom
