#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/mapped_file.h"
#include "checkpoint/catalogue.h"
#include "checkpoint/names.h"
#include "checkpoint/problems.h"
#include "checkpoint/shard_index.h"

namespace fathom {

struct Checkpoint::Impl {
  ModelConfig config;
  std::vector<SafetensorsFile> files;  // empty once the tensors are copied
  std::vector<CheckpointFile> file_list;
  AnonymousMemory memory;  // of copied and synthetic tensors
  std::optional<uint64_t> synthetic_seed;
  std::vector<StoredTensor> tensors;  // sorted by name
  std::vector<std::string> notes;
  uint64_t total_bytes = 0;
};

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

std::string_view Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool Exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Status OpenShards(const std::filesystem::path& directory, std::vector<SafetensorsFile>& files,
                  std::vector<std::string>& notes) {
  const std::filesystem::path index_path = directory / kIndexFile;
  FATHOM_ASSIGN_OR_RETURN(const MappedFile index_file, MappedFile::Open(index_path));
  FATHOM_ASSIGN_OR_RETURN(const ShardIndex index,
                          ParseShardIndex(Text(index_file), index_path.string()));
  Problems missing;
  for (const std::string& shard : index.shards) {
    if (!Exists(directory / shard)) missing.Add("shard " + Quoted(shard) + " is missing");
  }
  FATHOM_RETURN_IF_ERROR(missing.ToStatus(StatusCode::kNotFound, index_path.string()));
  uint64_t bytes = 0;
  for (const std::string& shard : index.shards) {
    FATHOM_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(directory / shard));
    for (const StoredTensor& tensor : file.tensors()) bytes += tensor.data.size();
    files.push_back(std::move(file));
  }
  FATHOM_RETURN_IF_ERROR(CompareWithShards(index, files, index_path.string()));
  if (index.total_bytes && *index.total_bytes != bytes) {
    notes.push_back(std::string(kIndexFile) + ": total_size is " +
                    std::to_string(*index.total_bytes) + ", the shards hold " +
                    std::to_string(bytes) + " bytes");
  }
  return OkStatus();
}

Status OpenFiles(const std::filesystem::path& directory, std::vector<SafetensorsFile>& files,
                 std::vector<std::string>& notes) {
  const bool has_index = Exists(directory / kIndexFile);
  if (Exists(directory / kSingleFile)) {
    FATHOM_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(directory / kSingleFile));
    files.push_back(std::move(file));
    if (has_index) notes.push_back(std::string(kIndexFile) + " ignored: there is " + kSingleFile);
    return OkStatus();
  }
  if (has_index) return OpenShards(directory, files, notes);
  return NotFound(directory.string() + ": neither " + kSingleFile + " nor " + kIndexFile);
}

// All tensors under their native names, without those that fathom does not use.
Status CollectTensors(const std::vector<SafetensorsFile>& files, const ModelConfig& config,
                      std::string_view source, std::vector<StoredTensor>& tensors,
                      std::vector<std::string>& notes) {
  const auto num_blocks = static_cast<int>(config.mtp_compress_ratios.size());
  int64_t num_shared = 0;
  int64_t num_drafter = 0;
  for (const SafetensorsFile& file : files) {
    for (const StoredTensor& stored : file.tensors()) {
      StoredTensor tensor = stored;
      tensor.name = NativeTensorName(stored.name);
      if (tensor.name.starts_with("mtp.")) {
        if (!config.has_dspark && IsSharedMtpTensor(tensor.name)) {
          ++num_shared;
          continue;
        }
        const int block = MtpBlockOf(tensor.name);
        if (config.has_dspark || block >= num_blocks) {
          ++num_drafter;
          continue;
        }
      }
      tensors.push_back(std::move(tensor));
    }
  }
  if (num_shared > 0) {
    notes.push_back(std::to_string(num_shared) +
                    " mtp tensors skipped: copies of the embedding or the head");
  }
  if (num_drafter > 0) {
    notes.push_back(std::to_string(num_drafter) + " mtp tensors skipped: " +
                    (config.has_dspark ? "the DSpark drafter is not used"
                                       : "num_nextn_predict_layers announces fewer blocks"));
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  Problems problems;
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name == tensors[i - 1].name) {
      problems.Add(Quoted(tensors[i].name) + ": stored twice under two spellings or in two files");
    }
  }
  return problems.ToStatus(StatusCode::kDataLoss, source);
}

// MTP blocks come and go together: a checkpoint without any is a main model, not a damaged one.
void DropAbsentMtp(ModelConfig& config, const std::vector<StoredTensor>& tensors,
                   std::vector<std::string>& notes) {
  if (config.mtp_compress_ratios.empty()) return;
  const bool present = std::any_of(tensors.begin(), tensors.end(), [](const StoredTensor& tensor) {
    return tensor.name.starts_with("mtp.");
  });
  if (present) return;
  notes.push_back("num_nextn_predict_layers is " +
                  std::to_string(config.mtp_compress_ratios.size()) +
                  " but there are no mtp tensors: no speculative decoding with MTP");
  config.mtp_compress_ratios.clear();
}

std::string TypeText(DType dtype, const std::vector<int64_t>& shape) {
  return std::string(DTypeName(dtype)) + " " + ShapeText(shape);
}

// Re-quantised experts whose config does not say so (the published config.json of some has no
// expert_dtype): by name, instead of a list of tens of thousands of wrong tensors.
Status RefuseOtherExperts(const std::vector<StoredTensor>& tensors, std::string_view source) {
  constexpr const char* kFirst = "layers.0.ffn.experts.0.w1.";
  const StoredTensor* weight = FindTensor(tensors, std::string(kFirst) + "weight");
  if (weight == nullptr || weight->dtype == DType::kI8) return OkStatus();
  const bool nvfp4 = FindTensor(tensors, std::string(kFirst) + "weight_scale_2") != nullptr;
  std::string what = "other";
  if (nvfp4) {
    what = "NVFP4";
  } else if (weight->dtype == DType::kF8E4M3) {
    what = "fp8 (as in the -Base checkpoints)";
  } else if (weight->dtype == DType::kBF16 || weight->dtype == DType::kF32) {
    what = "unquantised";
  }
  return Unimplemented(std::string(source) + ": routed experts are " + what + " (" + weight->name +
                       " is " + std::string(DTypeName(weight->dtype)) +
                       "); fathom reads the official fp4 ones, use DeepSeek-V4-Flash or "
                       "DeepSeek-V4-Pro");
}

Status CompareWithCatalogue(const ModelConfig& config, const std::vector<StoredTensor>& tensors,
                            std::string_view source) {
  // The catalogue's size follows from config.json alone; one that describes a far larger model than
  // the files hold is not worth building.
  const int64_t num_expert_tensors = int64_t{config.num_layers} * config.num_experts * 6;
  if (num_expert_tensors > static_cast<int64_t>(tensors.size()) * 4 + 100'000) {
    return InvalidArgument(std::string(source) + ": config.json describes at least " +
                           std::to_string(num_expert_tensors) + " tensors, the files hold " +
                           std::to_string(tensors.size()) + " (another model?)");
  }
  std::vector<ExpectedTensor> expected = ExpectedTensors(config);
  std::sort(expected.begin(), expected.end(),
            [](const ExpectedTensor& a, const ExpectedTensor& b) { return a.name < b.name; });
  Problems problems;
  size_t i = 0;
  for (const ExpectedTensor& want : expected) {
    for (; i < tensors.size() && tensors[i].name < want.name; ++i) {
      problems.Add(Quoted(tensors[i].name) + ": unexpected; the config has no such tensor");
    }
    if (i == tensors.size() || tensors[i].name != want.name) {
      problems.Add(want.name + ": missing, config needs " + TypeText(want.dtype, want.shape));
      continue;
    }
    const StoredTensor& have = tensors[i++];
    if (have.dtype != want.dtype || have.shape != want.shape) {
      problems.Add(want.name + ": " + TypeText(have.dtype, have.shape) + ", config needs " +
                   TypeText(want.dtype, want.shape));
    }
  }
  for (; i < tensors.size(); ++i) {
    problems.Add(Quoted(tensors[i].name) + ": unexpected; the config has no such tensor");
  }
  return problems.ToStatus(StatusCode::kInvalidArgument, source);
}

// Expert ids index memory later, and these tables are small (6 MB for 129,280 tokens): look once.
Status CheckHashTables(const ModelConfig& config, const std::vector<StoredTensor>& tensors,
                       std::string_view source) {
  Problems problems;
  for (int layer = 0; layer < config.num_hash_layers; ++layer) {
    const std::string name = "layers." + std::to_string(layer) + ".ffn.gate.tid2eid";
    const std::span<const std::byte> data = FindTensor(tensors, name)->data;
    for (size_t at = 0; at < data.size(); at += sizeof(int64_t)) {
      int64_t expert = 0;
      std::memcpy(&expert, data.data() + at, sizeof expert);
      if (expert >= 0 && expert < config.num_experts) continue;
      const size_t row_bytes = sizeof(int64_t) * static_cast<size_t>(config.num_experts_per_token);
      problems.Add(name + ": token " + std::to_string(at / row_bytes) + " goes to expert " +
                   std::to_string(expert) + ", the config has " +
                   std::to_string(config.num_experts));
    }
  }
  return problems.ToStatus(StatusCode::kDataLoss, source);
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::filesystem::path& directory) {
  auto impl = std::make_unique<Impl>();
  const std::string source = directory.string();
  FATHOM_ASSIGN_OR_RETURN(impl->config, LoadModelConfig(directory));
  FATHOM_RETURN_IF_ERROR(OpenFiles(directory, impl->files, impl->notes));
  FATHOM_RETURN_IF_ERROR(
      CollectTensors(impl->files, impl->config, source, impl->tensors, impl->notes));
  DropAbsentMtp(impl->config, impl->tensors, impl->notes);
  FATHOM_RETURN_IF_ERROR(RefuseOtherExperts(impl->tensors, source));
  FATHOM_RETURN_IF_ERROR(CompareWithCatalogue(impl->config, impl->tensors, source));
  FATHOM_RETURN_IF_ERROR(CheckHashTables(impl->config, impl->tensors, source));
  for (const StoredTensor& tensor : impl->tensors) impl->total_bytes += tensor.data.size();
  for (const SafetensorsFile& file : impl->files) {
    impl->file_list.push_back(
        {file.path(), file.file_bytes(), static_cast<int>(file.tensors().size())});
  }
  Checkpoint checkpoint(std::move(impl));
  FATHOM_RETURN_IF_ERROR(checkpoint.CheckFiles());
  return checkpoint;
}

Result<Checkpoint> Checkpoint::Synthetic(const ModelConfig& config, uint64_t seed) {
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  std::vector<ExpectedTensor> expected = ExpectedTensors(config);
  std::sort(expected.begin(), expected.end(),
            [](const ExpectedTensor& a, const ExpectedTensor& b) { return a.name < b.name; });
  constexpr size_t kTensorAlignment = 64;
  size_t bytes = 0;
  for (const ExpectedTensor& tensor : expected) {
    bytes += (tensor.bytes() + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  }
  FATHOM_ASSIGN_OR_RETURN(impl->memory, AnonymousMemory::Create(bytes, /*huge_pages=*/false));
  size_t begin = 0;
  for (ExpectedTensor& tensor : expected) {
    const std::span<std::byte> data = impl->memory.bytes().subspan(begin, tensor.bytes());
    begin += (data.size() + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    if (tensor.shape.size() == 1) SyntheticTensor(config, tensor, seed).Fill(0, data);
    impl->total_bytes += data.size();
    impl->tensors.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape), data});
  }
  impl->synthetic_seed = seed;
  return Checkpoint(std::move(impl));
}

bool Checkpoint::is_synthetic() const { return impl_->synthetic_seed.has_value(); }

std::optional<SyntheticTensor> Checkpoint::SyntheticAt(const std::byte* data) const {
  if (!is_synthetic()) return {};
  // Tensors lie in order of name.
  auto found = std::lower_bound(
      impl_->tensors.begin(), impl_->tensors.end(), data,
      [](const StoredTensor& tensor, const std::byte* at) { return tensor.data.data() < at; });
  while (found != impl_->tensors.end() && found->data.empty()) ++found;
  if (found == impl_->tensors.end() || found->data.data() != data || found->shape.size() == 1) {
    return {};
  }
  return SyntheticTensor(impl_->config, {found->name, found->dtype, found->shape},
                         *impl_->synthetic_seed);
}

void Checkpoint::MakeTensors(ThreadPool& pool,
                             const std::function<void(uint64_t, uint64_t)>& progress) {
  // Parts of one tensor on all threads: most bytes are in large ones.
  constexpr uint64_t kPartBytes = uint64_t{1} << 20;
  uint64_t done = 0;
  std::byte* const memory = impl_->memory.bytes().data();
  for (const StoredTensor& tensor : impl_->tensors) {
    if (const auto source = SyntheticAt(tensor.data.data())) {
      const std::span<std::byte> out(memory + (tensor.data.data() - memory), tensor.data.size());
      const uint64_t part = kPartBytes / source->unit_bytes() * source->unit_bytes();
      const auto parts = static_cast<int64_t>((out.size() + part - 1) / part);
      pool.ParallelFor(parts, [&](int64_t i) {
        const uint64_t begin = static_cast<uint64_t>(i) * part;
        source->Fill(begin, out.subspan(begin, std::min<uint64_t>(part, out.size() - begin)));
      });
    }
    done += tensor.data.size();
    progress(done, impl_->total_bytes);
  }
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const ModelConfig& Checkpoint::config() const { return impl_->config; }
const StoredTensor* Checkpoint::Find(std::string_view name) const {
  return FindTensor(impl_->tensors, name);
}
std::span<const StoredTensor> Checkpoint::tensors() const { return impl_->tensors; }
uint64_t Checkpoint::total_bytes() const { return impl_->total_bytes; }
int Checkpoint::num_files() const { return static_cast<int>(impl_->file_list.size()); }
std::vector<CheckpointFile> Checkpoint::files() const { return impl_->file_list; }
Status Checkpoint::CheckFiles() const {
  Problems problems;
  for (const SafetensorsFile& file : impl_->files) {
    if (!file.damaged()) continue;
    problems.Add(file.path().string() +
                 ": part of the file went away while it was in use (truncated, or a read error of "
                 "the disk); restore it and load the model again");
  }
  return problems.ToStatus(StatusCode::kDataLoss, "weights lost");
}
void Checkpoint::Preload(ThreadPool& pool,
                         const std::function<void(uint64_t, uint64_t)>& progress) const {
  // Some tensors at a time, so that progress is seen and all threads have work.
  constexpr size_t kBatch = 256;
  uint64_t done = 0;
  for (size_t begin = 0; begin < impl_->tensors.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, impl_->tensors.size() - begin);
    pool.ParallelFor(static_cast<int64_t>(count), [&](int64_t i) {
      Populate(impl_->tensors[begin + static_cast<size_t>(i)].data);
    });
    for (size_t i = 0; i < count; ++i) done += impl_->tensors[begin + i].data.size();
    progress(done, impl_->total_bytes);
  }
}
Status Checkpoint::CopyToMemory(ThreadPool& pool, const CopyOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(impl_->memory, CopyTensors(impl_->tensors, pool, options));
  FATHOM_RETURN_IF_ERROR(CheckFiles());
  impl_->files.clear();
  return OkStatus();
}
int64_t Checkpoint::HugePageBytes() const { return impl_->memory.HugePageBytes(); }
const std::vector<std::string>& Checkpoint::notes() const { return impl_->notes; }

}  // namespace fathom
