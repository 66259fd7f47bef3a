#include "checkpoint/synth.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <span>
#include <system_error>
#include <utility>

#include "checkpoint/names.h"
#include "checkpoint/problems.h"
#include "checkpoint/safetensors_writer.h"
#include "checkpoint/synth_tensor.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxTensors = 2'000'000;
// Between two looks at `cancel`: a fraction of a second.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;
constexpr int kNumDSparkStages = 3;

// The stages of a DSpark drafter: blocks as those of MTP, fed and read in another way.
std::vector<ExpectedTensor> DSparkTensors(const ModelConfig& config, const SynthDialect& dialect) {
  ModelConfig stages = config;
  stages.mtp_compress_ratios.assign(kNumDSparkStages, 0);
  const int64_t hidden = config.hidden_size;
  const int64_t rank = dialect.dspark_markov_rank;
  std::vector<ExpectedTensor> tensors;
  for (int stage = 0; stage < kNumDSparkStages; ++stage) {
    const std::string prefix = "mtp." + std::to_string(stage) + ".";
    const bool last = stage == kNumDSparkStages - 1;
    for (ExpectedTensor& tensor : ExpectedMtpTensors(stages, stage)) {
      const std::string_view name = std::string_view(tensor.name).substr(prefix.size());
      const bool feeds = name.starts_with("e_proj") || name.starts_with("h_proj") ||
                         name == "enorm.weight" || name == "hnorm.weight";
      const bool reads = name == "norm.weight" || name.starts_with("hc_head_");
      if (!feeds && (!reads || last)) tensors.push_back(std::move(tensor));
    }
    if (stage == 0) {
      const int64_t blocks = (hidden + 127) / 128;
      tensors.push_back({prefix + "main_proj.weight", DType::kF8E4M3, {hidden, 3 * hidden}});
      tensors.push_back({prefix + "main_proj.scale", DType::kF8E8M0, {blocks, 3 * blocks}});
      tensors.push_back({prefix + "main_norm.weight", DType::kBF16, {hidden}});
    }
    if (last) {
      for (const char* name : {"markov_head.markov_w1.weight", "markov_head.markov_w2.weight"}) {
        tensors.push_back({prefix + name, DType::kBF16, {config.vocab_size, rank}});
      }
      tensors.push_back({prefix + "confidence_head.proj.weight", DType::kBF16, {1, hidden + rank}});
    }
  }
  return tensors;
}

// The published place of a tensor: embedding, main layers, norm and head, blocks of the drafter.
size_t PublishedShard(const std::string& name, const ModelConfig& config) {
  constexpr std::string_view kLayers = "layers.";
  if (name == "embed.weight") return 0;
  const auto num_layers = static_cast<size_t>(config.num_layers);
  if (name.starts_with(kLayers)) {
    size_t layer = 0;
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
    return 1 + layer;
  }
  if (name.starts_with("mtp.")) return num_layers + 2 + static_cast<size_t>(MtpBlockOf(name));
  return num_layers + 1;
}

std::vector<SynthShard> CutShards(std::vector<ExpectedTensor> tensors, const ModelConfig& config,
                                  uint64_t max_bytes) {
  std::vector<std::vector<ExpectedTensor>> published;
  for (ExpectedTensor& tensor : tensors) {
    const size_t shard = PublishedShard(tensor.name, config);
    if (shard >= published.size()) published.resize(shard + 1);
    published[shard].push_back(std::move(tensor));
  }
  std::vector<SynthShard> shards;
  for (std::vector<ExpectedTensor>& group : published) {
    SynthShard shard;
    for (ExpectedTensor& tensor : group) {
      const uint64_t bytes = tensor.bytes();
      if (max_bytes > 0 && !shard.tensors.empty() && shard.bytes + bytes > max_bytes) {
        shards.push_back(std::exchange(shard, {}));
      }
      shard.bytes += bytes;
      shard.tensors.push_back(std::move(tensor));
    }
    if (!shard.tensors.empty()) shards.push_back(std::move(shard));
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    shards[i].file = name;
  }
  return shards;
}

std::string GigabytesText(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

// What an earlier checkpoint in this place would have left.
bool IsCheckpointFile(const std::string& name) {
  for (const char* known :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "model.safetensors", "model.safetensors.index.json"}) {
    if (name == known) return true;
  }
  return name.starts_with("model-") &&
         (name.ends_with(".safetensors") || name.ends_with(".safetensors.partial"));
}

Status CheckFreeSpace(const fs::path& directory, uint64_t needed, uint64_t freed) {
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  // A file system that does not tell is tried.
  if (error || space.available >= needed || freed >= needed - space.available) return OkStatus();
  return Unavailable(directory.string() + ": " + GigabytesText(space.available + freed) +
                     " are free, the checkpoint needs " + GigabytesText(needed));
}

// Makes the directory, or room in it; what cannot work is refused before anything is removed.
Status PrepareDirectory(const fs::path& directory, const SynthOptions& options, uint64_t needed) {
  std::error_code error;
  if (fs::exists(directory, error) && !fs::is_directory(directory, error)) {
    return InvalidArgument(directory.string() + ": is there and no directory");
  }
  fs::create_directories(directory, error);
  if (error) return Unavailable(directory.string() + ": cannot create: " + error.message());
  const fs::path& tokenizer = options.tokenizer_directory;
  if (!tokenizer.empty() && fs::equivalent(tokenizer, directory, error)) {
    return InvalidArgument(directory.string() + ": the tokenizer must come from elsewhere");
  }
  if (!tokenizer.empty() && !fs::exists(tokenizer / "tokenizer.json", error)) {
    return NotFound((tokenizer / "tokenizer.json").string() + ": does not exist");
  }
  std::vector<fs::path> old;
  uint64_t old_bytes = 0;
  bool in_use = false;
  error.clear();
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    in_use = true;
    if (!IsCheckpointFile(it->path().filename().string())) continue;
    old.push_back(it->path());
    std::error_code no_file;
    const uint64_t bytes = fs::file_size(it->path(), no_file);
    if (!no_file) old_bytes += bytes;
  }
  if (error) return Unavailable(directory.string() + ": cannot list: " + error.message());
  if (in_use && !options.overwrite) {
    return InvalidArgument(directory.string() +
                           ": not empty; name another directory or ask to overwrite it");
  }
  FATHOM_RETURN_IF_ERROR(CheckFreeSpace(directory, needed, old_bytes));
  for (const fs::path& file : old) {
    fs::remove(file, error);
    if (error) return Unavailable(file.string() + ": cannot remove: " + error.message());
  }
  return OkStatus();
}

Status WriteTextFile(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  return out ? OkStatus() : Unavailable(path.string() + ": cannot write");
}

std::string IndexText(const SynthPlan& plan, const SynthDialect& dialect) {
  std::vector<std::pair<std::string, const std::string*>> entries;
  for (const SynthShard& shard : plan.shards) {
    for (const ExpectedTensor& tensor : shard.tensors) {
      entries.emplace_back(NameInDialect(tensor.name, dialect), &shard.file);
    }
  }
  std::sort(entries.begin(), entries.end());
  // By hand: names of the catalogue need no escapes, and they are many.
  std::string text =
      "{\n  \"metadata\": {\n    \"total_size\": " + std::to_string(plan.total_bytes) +
      "\n  },\n  \"weight_map\": {";
  std::string_view separator = "\n";
  for (const auto& [name, file] : entries) {
    text.append(separator).append("    \"").append(name).append("\": \"").append(*file) += '"';
    separator = ",\n";
  }
  return text + "\n  }\n}\n";
}

// Writes checkpoints and takes back what it wrote unless all of it succeeded.
class Writer {
 public:
  Writer(const SynthPlan& plan, const fs::path& directory, const SynthOptions& options,
         ThreadPool& pool)
      : plan_(plan), directory_(directory), options_(options), pool_(pool) {
    scratch_.resize(static_cast<size_t>(pool.num_threads()));
    for (auto& buffer : scratch_) buffer.resize(kSynthPartBytes);
  }
  ~Writer() {
    std::error_code error;  // nothing better can be done about a file that stays
    for (const fs::path& file : written_) fs::remove(file, error);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  Status Run() {
    FATHOM_RETURN_IF_ERROR(Progress());
    FATHOM_RETURN_IF_ERROR(CopyTokenizer());
    for (const SynthShard& shard : plan_.shards) FATHOM_RETURN_IF_ERROR(WriteShard(shard));
    FATHOM_RETURN_IF_ERROR(
        WriteText("model.safetensors.index.json", IndexText(plan_, options_.dialect)));
    FATHOM_RETURN_IF_ERROR(
        WriteText("generation_config.json", GenerationConfigText(plan_.config_text)));
    FATHOM_RETURN_IF_ERROR(WriteText("config.json", plan_.config_text));
    written_.clear();
    return OkStatus();
  }

 private:
  // A part of a tensor; made and written by one thread.
  struct Part {
    size_t tensor = 0;
    uint64_t begin = 0;
    size_t bytes = 0;
  };

  Status Progress() {
    if (options_.on_progress) options_.on_progress(done_, plan_.total_bytes);
    if (options_.cancel == nullptr || !options_.cancel->load(std::memory_order_relaxed)) {
      return OkStatus();
    }
    return Cancelled(directory_.string() + ": interrupted; nothing was kept");
  }

  Status WriteText(const char* name, std::string_view text) {
    written_.push_back(directory_ / name);
    return WriteTextFile(written_.back(), text);
  }

  Status CopyTokenizer() {
    const fs::path& from = options_.tokenizer_directory;
    if (from.empty()) return OkStatus();
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      std::error_code error;
      const bool optional = std::string_view(name) == "tokenizer_config.json";
      if (optional && !fs::exists(from / name, error)) continue;
      written_.push_back(directory_ / name);
      fs::copy_file(from / name, written_.back(), error);
      if (error) return Unavailable((from / name).string() + ": cannot copy: " + error.message());
    }
    return OkStatus();
  }

  Status WriteShard(const SynthShard& shard) {
    std::vector<TensorSpec> specs;
    std::vector<SyntheticTensor> tensors;
    specs.reserve(shard.tensors.size());
    tensors.reserve(shard.tensors.size());
    for (const ExpectedTensor& tensor : shard.tensors) {
      specs.push_back({NameInDialect(tensor.name, options_.dialect), tensor.dtype, tensor.shape});
      tensors.emplace_back(plan_.config, tensor, options_.seed);
    }
    const fs::path path = directory_ / shard.file;
    FATHOM_ASSIGN_OR_RETURN(SafetensorsWriter file, SafetensorsWriter::Create(path, specs));
    std::vector<Part> batch;
    uint64_t batch_bytes = 0;
    for (size_t t = 0; t < tensors.size(); ++t) {
      const uint64_t size = shard.tensors[t].bytes();
      const uint64_t step = kSynthPartBytes / tensors[t].unit_bytes() * tensors[t].unit_bytes();
      for (uint64_t begin = 0; begin < size; begin += step) {
        batch.push_back({t, begin, static_cast<size_t>(std::min(step, size - begin))});
        batch_bytes += batch.back().bytes;
        if (batch_bytes < kBatchBytes) continue;
        FATHOM_RETURN_IF_ERROR(WriteBatch(batch, tensors, file));
        batch.clear();
        batch_bytes = 0;
      }
    }
    FATHOM_RETURN_IF_ERROR(WriteBatch(batch, tensors, file));
    FATHOM_RETURN_IF_ERROR(file.Finish());
    written_.push_back(path);
    return OkStatus();
  }

  Status WriteBatch(std::span<const Part> batch, std::span<const SyntheticTensor> tensors,
                    SafetensorsWriter& file) {
    Status first_error;
    std::mutex mutex;  // guards first_error
    pool_.ParallelFor(static_cast<int64_t>(batch.size()), [&](int64_t i, int thread) {
      const Part& part = batch[static_cast<size_t>(i)];
      const std::span<std::byte> bytes =
          std::span(scratch_[static_cast<size_t>(thread)]).first(part.bytes);
      tensors[part.tensor].Fill(part.begin, bytes);
      Status status = file.Write(part.tensor, part.begin, bytes);
      if (status.ok()) return;
      const std::lock_guard<std::mutex> lock(mutex);
      if (first_error.ok()) first_error = std::move(status);
    });
    FATHOM_RETURN_IF_ERROR(first_error);
    for (const Part& part : batch) done_ += part.bytes;
    return Progress();
  }

  const SynthPlan& plan_;
  const fs::path& directory_;
  const SynthOptions& options_;
  ThreadPool& pool_;
  std::vector<std::vector<std::byte>> scratch_;  // one part per thread
  std::vector<fs::path> written_;                // to be removed after an error
  uint64_t done_ = 0;
};

}  // namespace

Result<SynthPlan> PlanSyntheticCheckpoint(std::string_view config_text, std::string_view source,
                                          const SynthOptions& options) {
  SynthPlan plan;
  // Problems are told in the spelling that the caller gave.
  FATHOM_RETURN_IF_ERROR(ParseModelConfig(config_text, source).status());
  FATHOM_ASSIGN_OR_RETURN(plan.config_text, ConfigInDialect(config_text, source, options.dialect));
  FATHOM_ASSIGN_OR_RETURN(plan.config, ParseModelConfig(plan.config_text, source));
  const int64_t at_least = int64_t{plan.config.num_layers} * plan.config.num_experts * 6;
  if (at_least > kMaxTensors) {
    return InvalidArgument(std::string(source) + ": describes at least " +
                           std::to_string(at_least) + " tensors, at most " +
                           std::to_string(kMaxTensors) + " are written");
  }
  std::vector<ExpectedTensor> tensors =
      options.dialect.omit_mtp ? ExpectedMainTensors(plan.config) : ExpectedTensors(plan.config);
  if (options.dialect.dspark && !options.dialect.omit_mtp) {
    for (ExpectedTensor& tensor : DSparkTensors(plan.config, options.dialect)) {
      tensors.push_back(std::move(tensor));
    }
  }
  plan.num_tensors = tensors.size();
  for (const ExpectedTensor& tensor : tensors) {
    const uint64_t bytes = tensor.bytes();
    // No disk holds as much, and sums stay exact.
    if (bytes > uint64_t{1} << 60 || plan.total_bytes > uint64_t{1} << 60) {
      return InvalidArgument(std::string(source) + ": describes more than 2^60 bytes");
    }
    plan.total_bytes += bytes;
  }
  plan.shards = CutShards(std::move(tensors), plan.config, options.max_shard_bytes);
  return plan;
}

Status WriteSyntheticCheckpoint(const SynthPlan& plan, const fs::path& directory,
                                const SynthOptions& options, ThreadPool& pool) {
  std::error_code error;
  const bool is_new = !fs::exists(directory, error);
  Status status = PrepareDirectory(directory, options, plan.total_bytes);
  if (status.ok()) status = Writer(plan, directory, options, pool).Run();
  if (!status.ok() && is_new) fs::remove(directory, error);  // empty by now
  return status;
}

}  // namespace fathom
