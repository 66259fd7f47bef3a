#include "model/model.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "backend/pinned_memory.h"
#include "model/rope.h"
#include "model/weight_sizes.h"

namespace fathom {
namespace {

TensorView<const float> View(const std::vector<float>& v) {
  return {v.data(), static_cast<int64_t>(v.size())};
}

// Rows of logits that a device has room for; more are computed in turns.
constexpr int kDeviceLogitsRows = 64;

// Of tokens and log-probabilities of a step.
int64_t SampledBytes(int max_rows) {
  return max_rows * static_cast<int64_t>(sizeof(int32_t) + sizeof(float));
}

}  // namespace

BackendLimits BackendLimitsFor(const ModelConfig& c, int max_rows, int64_t max_positions,
                               int64_t num_host_experts) {
  BackendLimits limits;
  limits.max_rows = max_rows;
  limits.max_cols = std::max({c.hidden_size, c.q_lora_rank, c.o_groups * c.o_lora_rank,
                              c.moe_intermediate_size * std::max(1, c.num_shared_experts),
                              c.num_heads / c.o_groups * c.head_dim});
  limits.max_experts = c.num_experts;
  limits.max_experts_per_token = c.num_experts_per_token;
  limits.max_expert_width = c.moe_intermediate_size * std::max(1, c.num_shared_experts);
  limits.num_expert_layers = c.num_layers;
  if (num_host_experts > 0) {
    limits.host_experts_per_layer =
        static_cast<int>((num_host_experts + c.num_layers - 1) / c.num_layers);
    limits.host_expert_bytes = WeightSizesOf(c).expert_bytes;
  }
  limits.max_heads = std::max(c.num_heads, c.index_num_heads);
  limits.max_head_dim = std::max(c.head_dim, c.index_head_dim);
  limits.max_positions = max_positions;
  return limits;
}

Result<std::unique_ptr<Model>> Model::Create(const Checkpoint& checkpoint, Backend& backend,
                                             int max_rows, int64_t max_positions,
                                             const WeightUpload& upload,
                                             Communicator* communicator) {
  if (max_rows < 1) return InvalidArgument("a step needs room for at least one token");
  if (communicator != nullptr && communicator->num_ranks() != 1) {
    return Unimplemented("rank " + std::to_string(communicator->rank()) + " of " +
                         std::to_string(communicator->num_ranks()) +
                         ": weights are not divided between ranks; one has the whole model");
  }
  std::unique_ptr<Model> model(new Model(checkpoint, backend, max_positions, communicator));
  const ModelConfig& config = model->config_;
  DeviceMemory& memory = backend.memory();
  FATHOM_ASSIGN_OR_RETURN(model->weights_, ModelWeights::Build(checkpoint));
  // Before the scratch and the activations: what does not fit is said with its size.
  if (!memory.host_readable()) {
    DeviceMemory* const pinned = PinnedMemoryOf(backend);
    HostDeviceMemory plain;
    CopyingWriter copying(pinned == nullptr ? plain : *pinned);
    FATHOM_RETURN_IF_ERROR(model->weights_->MoveTo(
        {memory, pinned, upload.placement},
        upload.writer == nullptr ? static_cast<WeightWriter&>(copying) : *upload.writer,
        upload.progress));
  }
  FATHOM_RETURN_IF_ERROR(backend.Prepare(
      BackendLimitsFor(config, max_rows, max_positions, upload.placement.num_on_host())));
  for (const LayerWeights& layer : model->weights_->layers) {
    const AttentionWeights& a = layer.attn;
    const ExpertWeights& shared = layer.ffn.shared;
    for (const WeightView* matrix : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &a.indexer.wq_b,
                                     &shared.w1, &shared.w2, &shared.w3}) {
      if (!matrix->empty()) FATHOM_RETURN_IF_ERROR(backend.AddWeight(*matrix));
    }
    FATHOM_RETURN_IF_ERROR(backend.AddExperts(layer.ffn.routed, shared));
  }
  FATHOM_ASSIGN_OR_RETURN(model->activations_, Activations::Create(config, max_rows, memory));
  model->frequencies_plain_ = RopeFrequencies(config, false);
  model->frequencies_compressed_ = RopeFrequencies(config, true);
  model->rope_plain_ = View(model->frequencies_plain_);
  model->rope_compressed_ = View(model->frequencies_compressed_);
  FATHOM_RETURN_IF_ERROR(model->AllocateOutputs(max_rows));
  if (memory.host_readable()) return model;

  FATHOM_ASSIGN_OR_RETURN(model->frequency_buffer_,
                          memory.Allocate(2 * int64_t{sizeof(float)} * model->rope_plain_.size()));
  std::byte* at = model->frequency_buffer_.data();
  for (TensorView<const float>* table : {&model->rope_plain_, &model->rope_compressed_}) {
    const auto bytes = std::as_bytes(table->elements());
    FATHOM_RETURN_IF_ERROR(memory.CopyIn(at, bytes));
    *table = table->At(reinterpret_cast<const float*>(at));
    at += bytes.size();
  }
  return model;
}

Status Model::AllocateOutputs(int max_rows) {
  DeviceMemory& memory = backend_.memory();
  if (memory.host_readable() && !backend_.samples()) return OkStatus();
  const int64_t rows = std::min(max_rows, kDeviceLogitsRows);
  FATHOM_ASSIGN_OR_RETURN(logits_buffer_, memory.Allocate(rows * config_.vocab_size *
                                                          static_cast<int64_t>(sizeof(float))));
  logits_ = {reinterpret_cast<float*>(logits_buffer_.data()), rows, int64_t{config_.vocab_size}};
  all_places_.resize(static_cast<size_t>(rows));
  std::iota(all_places_.begin(), all_places_.end(), 0);
  sampled_places_.reserve(all_places_.size());
  host_places_.reserve(all_places_.size());
  FATHOM_ASSIGN_OR_RETURN(sampled_buffer_, memory.Allocate(SampledBytes(max_rows)));
  sampled_tokens_ = {reinterpret_cast<int32_t*>(sampled_buffer_.data()), max_rows};
  sampled_logprobs_ = {reinterpret_cast<float*>(sampled_tokens_.data() + max_rows), max_rows};
  host_tokens_.reserve(static_cast<size_t>(max_rows));
  host_logprobs_.reserve(static_cast<size_t>(max_rows));
  for (Launched& step : launched_) step.tokens.reserve(static_cast<size_t>(max_rows));
  return OkStatus();
}

std::vector<int64_t> Model::DeviceBuffers(const ModelConfig& config, int max_rows) {
  const auto frequencies = static_cast<int64_t>(RopeFrequencies(config, false).size());
  const int64_t logits_rows = std::min(max_rows, kDeviceLogitsRows);
  return {Activations::Bytes(config, max_rows), 2 * int64_t{sizeof(float)} * frequencies,
          logits_rows * config.vocab_size * static_cast<int64_t>(sizeof(float)),
          SampledBytes(max_rows)};
}

Status Model::QuantiseOProjInputs() {
  if (backend_.numerics() == Numerics::kExact) {
    return InvalidArgument("--o-proj-activations fp8: exact numerics round nothing");
  }
  for (size_t layer = 0; layer < weights_->layers.size(); ++layer) {
    const WeightView& wo_a = weights_->layers[layer].attn.wo_a;
    if (wo_a.quantised()) continue;
    return InvalidArgument("--o-proj-activations fp8: layers." + std::to_string(layer) +
                           ".attn.wo_a is " + std::string(DTypeName(wo_a.dtype)) +
                           ", and e4m3 inputs are those of fp8 matrices");
  }
  quantise_o_proj_inputs_ = true;
  return OkStatus();
}

Status Model::CountExpertUse() {
  expert_use_ = std::make_unique<ExpertUse>(config_);
  const int64_t ids = int64_t{config_.num_layers} * max_rows() * config_.num_experts_per_token;
  noted_ids_.resize(static_cast<size_t>(ids));
  if (backend_.memory().host_readable()) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(noted_buffer_,
                          backend_.memory().Allocate(ids * int64_t{sizeof(int32_t)}));
  return OkStatus();
}

Status Model::NoteExperts(int layer, TensorView<const int32_t> experts) {
  const int64_t begin = layer * experts.size();
  const auto bytes = std::as_bytes(experts.elements());
  if (noted_buffer_.data() == nullptr) {
    std::memcpy(noted_ids_.data() + begin, bytes.data(), bytes.size());
    return OkStatus();
  }
  return backend_.memory().CopyWithin(noted_buffer_.data() + begin * int64_t{sizeof(int32_t)},
                                      bytes.data(), static_cast<int64_t>(bytes.size()));
}

Status Model::CountNotedExperts() {
  const auto per_row = static_cast<size_t>(config_.num_experts_per_token);
  const size_t per_layer = static_cast<size_t>(rows()) * per_row;
  const size_t begin = static_cast<size_t>(first_noted_layer_) * per_layer;
  const auto ids =
      std::span(noted_ids_).subspan(begin, static_cast<size_t>(num_noted_layers_) * per_layer);
  if (noted_buffer_.data() != nullptr) {
    FATHOM_RETURN_IF_ERROR(backend_.memory().CopyOut(
        std::as_writable_bytes(ids), noted_buffer_.data() + begin * sizeof(int32_t)));
  }
  for (int i = 0; i < num_noted_layers_; ++i) {
    expert_use_->Add(first_noted_layer_ + i,
                     ids.subspan(static_cast<size_t>(i) * per_layer,
                                 static_cast<size_t>(num_counted_rows_) * per_row));
  }
  return OkStatus();
}

void Model::SerialiseStreams(bool serial) {
  lanes_.SetBackend(serial ? nullptr : SideLaneOf(backend_));
  prefetches_experts_ = !serial;
}

Status Model::RecordSteps(const GraphOptions& options) {
  RecordsSteps* const recording = RecordingOf(backend_);
  if (recording == nullptr) {
    return Unimplemented("the " + std::string(backend_.name()) + " backend records no steps");
  }
  checked_layers_.clear();
  std::vector<std::pair<int, bool>> kinds;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const std::pair kind(Layer(layer).ratio, !Layer(layer).ffn.hash_table.empty());
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) continue;
    kinds.push_back(kind);
    checked_layers_.push_back(layer);
  }
  graphs_ = std::make_unique<StepGraphs>(*recording, options, max_rows(), max_positions_,
                                         config_.num_layers + 1);
  return OkStatus();
}

}  // namespace fathom
