#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "backend/pinned_memory.h"
#include "model/rope.h"
#include "model/weight_sizes.h"

namespace fathom {
namespace {

RouteScoring ScoringOf(const ModelConfig& config) {
  switch (config.scoring) {
    case ScoringFunc::kSqrtSoftplus:
      return RouteScoring::kSqrtSoftplus;
    case ScoringFunc::kSigmoid:
      return RouteScoring::kSigmoid;
    case ScoringFunc::kSoftmax:
      return RouteScoring::kSoftmax;
  }
  return RouteScoring::kSqrtSoftplus;
}

// Positions of the anchors of all entries that end in the step, in the order that CompressInsert
// wants.
void CollectAnchors(const StepPlan& plan, int ratio, std::vector<Position>& anchors) {
  anchors.clear();
  for (const SequenceRows& rows : plan.sequences) {
    const EndingEntries ending = EntriesEnding(rows, ratio);
    for (int j = 0; j < ending.count; ++j) anchors.push_back(ratio * (ending.first + j));
  }
}

TensorView<const float> View(const std::vector<float>& v) {
  return {v.data(), static_cast<int64_t>(v.size())};
}

// Rows of logits that a device has room for; more are computed in turns.
constexpr int kDeviceLogitsRows = 64;

// Of tokens and log-probabilities of a step.
int64_t SampledBytes(int max_rows) {
  return max_rows * static_cast<int64_t>(sizeof(int32_t) + sizeof(float));
}

// A view that the host may read: the device's own, or of a copy. For observers.
template <typename T>
class HostView {
 public:
  Status Read(DeviceMemory& memory, TensorView<const T> view) {
    view_ = view;
    if (memory.host_readable()) return OkStatus();
    copy_.resize(static_cast<size_t>(view.size()));
    view_ = view.At(copy_.data());
    return memory.CopyOut(std::as_writable_bytes(std::span(copy_)),
                          reinterpret_cast<const std::byte*>(view.data()));
  }
  [[nodiscard]] TensorView<const T> view() const { return view_; }

 private:
  std::vector<T> copy_;
  TensorView<const T> view_;
};

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
                                             const WeightUpload& upload) {
  if (max_rows < 1) return InvalidArgument("a step needs room for at least one token");
  std::unique_ptr<Model> model(new Model(checkpoint, backend, max_positions));
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

Status Model::Forward(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer) {
  sampling_ = {};
  first_noted_layer_ = 0;
  num_noted_layers_ = config_.num_layers;
  return EndStep(Run(plan, logits, observer));
}

Status Model::ForwardAndSample(const StepPlan& plan, const StepSampling& sampling,
                               TensorView<float> logits) {
  FATHOM_RETURN_IF_ERROR(CheckSampling(plan, sampling));
  sampling_ = sampling;
  first_noted_layer_ = 0;
  num_noted_layers_ = config_.num_layers;
  return EndStep(Run(plan, logits, nullptr));
}

Status Model::EndStep(Status status) {
  Status done = backend_.Synchronize();
  if (!status.ok() || !done.ok()) return status.ok() ? done : status;
  return expert_use_ == nullptr ? OkStatus() : CountNotedExperts();
}

Status Model::Run(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer) {
  const auto way =
      graphs_ == nullptr || observer != nullptr ? StepGraphs::Way::kDirect : graphs_->WayOf(plan);
  FATHOM_RETURN_IF_ERROR(BeginStep(plan, way));
  next_wanted_ = 0;
  next_sampled_ = 0;
  switch (way) {
    case StepGraphs::Way::kDirect:
      FATHOM_RETURN_IF_ERROR(RunDirectly(logits, observer));
      break;
    case StepGraphs::Way::kPieces:
      FATHOM_RETURN_IF_ERROR(RunInPieces(logits));
      break;
    case StepGraphs::Way::kWhole:
      FATHOM_RETURN_IF_ERROR(RunWhole(plan.logits_rows, logits));
      break;
  }
  return TakeTokens();
}

Status Model::RunDirectly(TensorView<float> logits, ForwardObserver* observer) {
  FATHOM_RETURN_IF_ERROR(RotateRows());
  FATHOM_RETURN_IF_ERROR(RotateAnchors());
  FATHOM_RETURN_IF_ERROR(Embed());
  const TensorView<float> hc = activations_.hc.First(rows());
  for (int layer = 0; layer <= config_.num_layers; ++layer) {
    if (observer != nullptr) {
      HostView<float> seen;
      FATHOM_RETURN_IF_ERROR(seen.Read(backend_.memory(), hc));
      observer->OnHidden(layer, seen.view());
    }
    if (layer < config_.num_layers) FATHOM_RETURN_IF_ERROR(Block(layer, hc, observer));
  }
  return Head(step_.logits_rows, logits);
}

Status Model::RunInPieces(TensorView<float> logits) {
  const TensorView<float> hc = activations_.hc.First(rows());
  FATHOM_RETURN_IF_ERROR(RotateAnchors());
  for (int layer = 0; layer <= config_.num_layers; ++layer) {
    const auto piece = [&]() -> Status {
      if (layer == 0) {
        FATHOM_RETURN_IF_ERROR(RotateRows());
        FATHOM_RETURN_IF_ERROR(Embed());
      } else {
        FATHOM_RETURN_IF_ERROR(AfterAttention(layer - 1, hc, nullptr));
      }
      return layer < config_.num_layers ? BeforeAttention(layer, hc, nullptr) : OkStatus();
    };
    FATHOM_RETURN_IF_ERROR(graphs_->Do(layer, piece));
    if (layer < config_.num_layers) FATHOM_RETURN_IF_ERROR(Attend(layer, nullptr));
  }
  return Head(step_.logits_rows, logits);
}

Status Model::RunWhole(std::span<const int> wanted, TensorView<float> logits) {
  // Logits of all rows, where a device has room for them: which ones are wanted differs.
  const bool with_head = rows() <= logits_.dim(0);
  const auto step = [&]() -> Status {
    FATHOM_RETURN_IF_ERROR(RotateRows());
    FATHOM_RETURN_IF_ERROR(RotateAnchors());
    FATHOM_RETURN_IF_ERROR(Embed());
    const TensorView<float> hc = activations_.hc.First(rows());
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      FATHOM_RETURN_IF_ERROR(Block(layer, hc, nullptr));
    }
    return with_head ? DeviceHead(step_.logits_rows, logits_.First(rows())) : OkStatus();
  };
  FATHOM_RETURN_IF_ERROR(graphs_->Do(0, step));
  return with_head ? TakeLogits(wanted, logits) : Head(wanted, logits);
}

Status Model::Embed() { return backend_.EmbedExpand(EmbedArgs()); }

EmbedExpandArgs Model::EmbedArgs() {
  return {step_.token_ids, weights_->embed, activations_.hc.First(rows())};
}

Status Model::DeviceHead(std::span<const int> rows, TensorView<float> logits) {
  HeadArgs head;
  head.hc = activations_.hc.First(step_.num_rows());
  head.rows = rows;
  head.fn = weights_->hc_head.fn;
  head.base = weights_->hc_head.base;
  head.scale = weights_->hc_head.scale;
  head.norm_weight = weights_->norm;
  head.head = weights_->head;
  head.norm_eps = static_cast<float>(config_.rms_norm_eps);
  head.hc_eps = static_cast<float>(config_.hc_eps);
  head.logits = logits;
  return backend_.Head(head);
}

Status Model::Head(std::span<const int> rows, TensorView<float> logits) {
  if (rows.empty()) return OkStatus();
  if (sampling_.indices.empty() && backend_.memory().host_readable()) {
    return DeviceHead(rows, logits);
  }
  const auto total = static_cast<int64_t>(rows.size());
  for (int64_t begin = 0; begin < total; begin += logits_.dim(0)) {
    const int64_t n = std::min(logits_.dim(0), total - begin);
    FATHOM_RETURN_IF_ERROR(DeviceHead(
        rows.subspan(static_cast<size_t>(begin), static_cast<size_t>(n)), logits_.First(n)));
    FATHOM_RETURN_IF_ERROR(
        TakeLogits(std::span(all_places_).first(static_cast<size_t>(n)), logits));
  }
  return OkStatus();
}

Status Model::ForwardLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                           ForwardObserver* observer) {
  if (layer < 0 || layer >= config_.num_layers) {
    return InvalidArgument("layer " + std::to_string(layer) + " of " +
                           std::to_string(config_.num_layers));
  }
  first_noted_layer_ = layer;
  num_noted_layers_ = 1;
  return EndStep(RunLayer(layer, plan, hc, observer));
}

Status Model::RunLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                       ForwardObserver* observer) {
  FATHOM_RETURN_IF_ERROR(BeginStep(plan, StepGraphs::Way::kDirect));
  FATHOM_RETURN_IF_ERROR(RotateRows());
  FATHOM_RETURN_IF_ERROR(RotateAnchors());
  DeviceMemory& memory = backend_.memory();
  if (memory.host_readable()) return Block(layer, hc, observer);
  const TensorView<float> copy = activations_.hc.First(plan.num_rows());
  if (copy.shape() != hc.shape()) return InvalidArgument("the residual stream has another shape");
  auto* const data = reinterpret_cast<std::byte*>(copy.data());
  FATHOM_RETURN_IF_ERROR(memory.CopyIn(data, std::as_bytes(hc.elements())));
  FATHOM_RETURN_IF_ERROR(Block(layer, copy, observer));
  return memory.CopyOut(std::as_writable_bytes(hc.elements()), data);
}

Status Model::Observe(ForwardObserver* observer, int layer, std::string_view name,
                      TensorView<const float> values) {
  if (observer == nullptr) return OkStatus();
  HostView<float> seen;
  FATHOM_RETURN_IF_ERROR(seen.Read(backend_.memory(), values));
  observer->OnTensor(layer, name, seen.view());
  return OkStatus();
}

Status Model::BeginStep(const StepPlan& plan, StepGraphs::Way way) {
  const int n = plan.num_rows();
  if (n < 1 || n > max_rows()) {
    return InvalidArgument("a step of " + std::to_string(n) + " tokens, room for 1 to " +
                           std::to_string(max_rows()));
  }
  if (prefetch_ != nullptr) prefetch_->BeginStep(plan.token_ids);
  num_counted_rows_ = n;
  step_ = way == StepGraphs::Way::kDirect ? plan : graphs_->Pad(plan, way);
  for (const int ratio : {4, 128}) {
    std::vector<Position>& anchors = activations_.anchors[AnchorsOf(ratio)];
    CollectAnchors(step_, ratio, anchors);
    if (way == StepGraphs::Way::kWhole) anchors.resize(static_cast<size_t>(rows()), 0);
    step_.anchors[AnchorsOf(ratio)] = anchors;
  }
  // What is done again asks nothing.
  if (way != StepGraphs::Way::kDirect) FATHOM_RETURN_IF_ERROR(CheckPlan());
  return backend_.BeginStep(step_);
}

Status Model::CheckPlan() {
  FATHOM_RETURN_IF_ERROR(Check(EmbedArgs()));
  for (const int layer : checked_layers_) {
    const AttentionWeights& w = Layer(layer).attn;
    FATHOM_RETURN_IF_ERROR(Check(InsertArgs(layer)));
    if (Layer(layer).ratio != 0) {
      FATHOM_RETURN_IF_ERROR(Check(CompressArgs(layer, w.compressor, false)));
    }
    if (Layer(layer).ratio == 4) {
      FATHOM_RETURN_IF_ERROR(Check(CompressArgs(layer, w.indexer.compressor, true)));
      FATHOM_RETURN_IF_ERROR(Check(SelectArgs(layer)));
    }
    FATHOM_RETURN_IF_ERROR(Check(AttentionArgs(layer)));
    FATHOM_RETURN_IF_ERROR(Check(RoutingArgs(layer)));
  }
  return OkStatus();
}

Status Model::RotateRows() {
  FATHOM_RETURN_IF_ERROR(
      backend_.RopeTable({step_.positions, rope_plain_, activations_.rope_plain.First(rows())}));
  return backend_.RopeTable(
      {step_.positions, rope_compressed_, activations_.rope_compressed.First(rows())});
}

Status Model::RotateAnchors() {
  for (size_t r = 0; r < step_.anchors.size(); ++r) {
    const auto n = static_cast<int64_t>(step_.anchors[r].size());
    FATHOM_RETURN_IF_ERROR(backend_.RopeTable(
        {step_.anchors[r], rope_compressed_, activations_.rope_anchors[r].First(n)}));
  }
  return OkStatus();
}

Status Model::HcPreNorm(const HyperConnectionWeights& hc_weights, TensorView<const float> norm,
                        TensorView<const float> hc) {
  const int64_t n = hc.dim(0);
  HcPreNormArgs args;
  args.hc = hc;
  args.fn = hc_weights.fn;
  args.base = hc_weights.base;
  args.scale = hc_weights.scale;
  args.norm_weight = norm;
  args.norm_eps = static_cast<float>(config_.rms_norm_eps);
  args.hc_eps = static_cast<float>(config_.hc_eps);
  args.sinkhorn_iters = config_.hc_sinkhorn_iters;
  args.x = activations_.x.First(n);
  args.post = activations_.post.First(n);
  args.comb = activations_.comb.First(n);
  return backend_.HcPreNorm(args);
}

Status Model::HcPost(TensorView<float> hc) {
  Activations& a = activations_;
  const int n = rows();
  return backend_.HcPost({a.sublayer_out.First(n), a.post.First(n), a.comb.First(n), hc});
}

Status Model::Block(int layer, TensorView<float> hc, ForwardObserver* observer) {
  FATHOM_RETURN_IF_ERROR(
      backend_.PrefetchExperts(Layer(layer).ffn.routed, rows(), config_.num_experts_per_token));
  FATHOM_RETURN_IF_ERROR(BeforeAttention(layer, hc, observer));
  FATHOM_RETURN_IF_ERROR(Attend(layer, observer));
  return AfterAttention(layer, hc, observer);
}

// hc -> x, and what is projected from it.
Status Model::BeforeAttention(int layer, TensorView<float> hc, ForwardObserver* observer) {
  Activations& a = activations_;
  const int n = rows();
  const AttentionWeights& w = Layer(layer).attn;
  FATHOM_RETURN_IF_ERROR(HcPreNorm(Layer(layer).hc_attn, Layer(layer).attn_norm, hc));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "attn_in", a.x.First(n)));

  const TensorView<float> q_lora = a.q_lora.First(n);
  FATHOM_RETURN_IF_ERROR(
      backend_.Linear({a.x.First(n), {w.wq_a, q_lora}, {w.wkv, a.kv.First(n)}, true}));
  FATHOM_RETURN_IF_ERROR(
      backend_.RmsNorm({q_lora, w.q_norm, static_cast<float>(config_.rms_norm_eps), q_lora}));
  const TensorView<float> q_flat(a.q.data(), n, a.q.row_size());
  FATHOM_RETURN_IF_ERROR(backend_.Linear({q_lora, {w.wq_b, q_flat}, {}, true}));
  if (Layer(layer).ratio != 0) FATHOM_RETURN_IF_ERROR(CompressorRows(w.compressor, false));
  if (Layer(layer).ratio != 4) return OkStatus();

  const IndexerWeights& indexer = w.indexer;
  FATHOM_RETURN_IF_ERROR(CompressorRows(indexer.compressor, true));
  const TensorView<float> index_q(a.index_q.data(), n, a.index_q.row_size());
  FATHOM_RETURN_IF_ERROR(backend_.Linear({q_lora, {indexer.wq_b, index_q}, {}, true}));
  return backend_.Linear(
      {a.x.First(n), {indexer.weights_proj, a.index_weights.First(n)}, {}, true});
}

Status Model::CompressorRows(const CompressorWeights& w, bool index_side) {
  Activations& a = activations_;
  const int n = rows();
  return backend_.Linear({a.x.First(n),
                          {w.wkv, a.KvRows(index_side, n, w.wkv.rows)},
                          {w.wgate, a.ScoreRows(index_side, n, w.wgate.rows)},
                          /*round_output=*/false});
}

// The step's entries are stored, and its queries look at what is there.
Status Model::Attend(int layer, ForwardObserver* observer) {
  const AttentionWeights& w = Layer(layer).attn;
  const int ratio = Layer(layer).ratio;
  FATHOM_RETURN_IF_ERROR(backend_.QNormRopeKvInsert(InsertArgs(layer)));
  // Entries that end in this step must be stored before its queries look for them.
  if (ratio != 0) {
    FATHOM_RETURN_IF_ERROR(backend_.CompressInsert(CompressArgs(layer, w.compressor, false)));
  }
  if (ratio == 4) {
    FATHOM_RETURN_IF_ERROR(
        backend_.CompressInsert(CompressArgs(layer, w.indexer.compressor, true)));
    FATHOM_RETURN_IF_ERROR(SelectEntries(layer, observer));
  }
  const SparseAttentionArgs attention = AttentionArgs(layer);
  FATHOM_RETURN_IF_ERROR(backend_.SparseAttention(attention));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "q", attention.q));
  return Observe(observer, layer, "attn_o", attention.out);
}

// What attention gave -> sublayer_out -> hc, then the experts' part.
Status Model::AfterAttention(int layer, TensorView<float> hc, ForwardObserver* observer) {
  Activations& a = activations_;
  const int n = rows();
  const AttentionWeights& w = Layer(layer).attn;
  const TensorView<float> o_lora = a.o_lora.First(n);
  FATHOM_RETURN_IF_ERROR(
      backend_.InverseRopeOut({a.attn_o.First(n), RotationsOf(layer), w.wo_a, config_.o_groups,
                               o_lora, quantise_o_proj_inputs_}));
  FATHOM_RETURN_IF_ERROR(backend_.Linear({o_lora, {w.wo_b, a.sublayer_out.First(n)}, {}, true}));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "attn_out", a.sublayer_out.First(n)));
  FATHOM_RETURN_IF_ERROR(HcPost(hc));

  FATHOM_RETURN_IF_ERROR(HcPreNorm(Layer(layer).hc_ffn, Layer(layer).ffn_norm, hc));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "ffn_in", a.x.First(n)));
  FATHOM_RETURN_IF_ERROR(MixtureOfExperts(layer, observer));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "ffn_out", a.sublayer_out.First(n)));
  return HcPost(hc);
}

// Layers with a compressor rotate everything with its table, window keys included.
TensorView<const float> Model::RotationsOf(int layer) const {
  return (Layer(layer).ratio == 0 ? activations_.rope_plain : activations_.rope_compressed)
      .First(rows());
}

QNormRopeKvInsertArgs Model::InsertArgs(int layer) {
  Activations& a = activations_;
  const int n = rows();
  return {a.q.First(n),
          a.kv.First(n),
          Layer(layer).attn.kv_norm,
          RotationsOf(layer),
          static_cast<float>(config_.rms_norm_eps),
          &step_,
          step_.Pages(layer, CacheKind::kSwaKv),
          a.step_kv.First(n)};
}

CompressInsertArgs Model::CompressArgs(int layer, const CompressorWeights& w, bool index_side) {
  Activations& a = activations_;
  const int n = rows();
  CompressInsertArgs args;
  args.ratio = Layer(layer).ratio;
  args.kv_rows = a.KvRows(index_side, n, w.wkv.rows);
  args.score_rows = a.ScoreRows(index_side, n, w.wgate.rows);
  args.ape = w.ape;
  args.norm_weight = w.norm;
  args.norm_eps = static_cast<float>(config_.rms_norm_eps);
  args.index_side = index_side;
  args.plan = &step_;
  const size_t r = AnchorsOf(args.ratio);
  args.anchor_cos_sin = a.rope_anchors[r].First(static_cast<int64_t>(step_.anchors[r].size()));
  if (args.ratio == 4) {
    args.state_kind = index_side ? CacheKind::kC4IndexState : CacheKind::kC4State;
    args.out_kind = index_side ? CacheKind::kC4IndexKeys : CacheKind::kC4Kv;
  } else {
    args.state_kind = CacheKind::kC128State;
    args.out_kind = CacheKind::kC128Kv;
  }
  args.state = step_.Pages(layer, args.state_kind);
  args.out = step_.Pages(layer, args.out_kind);
  return args;
}

IndexerTopkArgs Model::SelectArgs(int layer) {
  Activations& a = activations_;
  const int n = rows();
  IndexerTopkArgs args;
  args.q = a.index_q.First(n);
  args.head_weights = a.index_weights.First(n);
  args.cos_sin = a.rope_compressed.First(n);
  args.plan = &step_;
  args.keys = step_.Pages(layer, CacheKind::kC4IndexKeys);
  args.topk = config_.index_topk;
  args.entries = a.entries.First(n);
  args.num_entries = a.num_entries.First(n);
  return args;
}

Status Model::SelectEntries(int layer, ForwardObserver* observer) {
  const IndexerTopkArgs args = SelectArgs(layer);
  FATHOM_RETURN_IF_ERROR(backend_.IndexerTopk(args));
  if (observer == nullptr) return OkStatus();
  HostView<int32_t> entries, num_entries;
  FATHOM_RETURN_IF_ERROR(entries.Read(backend_.memory(), args.entries));
  FATHOM_RETURN_IF_ERROR(num_entries.Read(backend_.memory(), args.num_entries));
  observer->OnEntries(layer, entries.view(), num_entries.view());
  return OkStatus();
}

SparseAttentionArgs Model::AttentionArgs(int layer) {
  Activations& a = activations_;
  const int n = rows();
  SparseAttentionArgs attention;
  attention.q = a.q.First(n);
  attention.plan = &step_;
  attention.step_kv = a.step_kv.First(n);
  attention.swa = step_.Pages(layer, CacheKind::kSwaKv);
  attention.window = config_.window;
  attention.ratio = Layer(layer).ratio;
  if (attention.ratio != 0) {
    attention.compressed_kind = attention.ratio == 4 ? CacheKind::kC4Kv : CacheKind::kC128Kv;
    attention.compressed = step_.Pages(layer, attention.compressed_kind);
  }
  if (attention.ratio == 4) {
    attention.entries = a.entries.First(n);
    attention.num_entries = a.num_entries.First(n);
  }
  attention.sink = Layer(layer).attn.sink;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  attention.out = a.attn_o.First(n);
  return attention;
}

RouteArgs Model::RoutingArgs(int layer) {
  const FfnWeights& w = Layer(layer).ffn;
  RouteArgs route;
  route.x = activations_.x.First(rows());
  route.gate = w.gate;
  route.bias = w.bias;
  route.hash_table = w.hash_table;
  route.token_ids = step_.token_ids;
  route.scoring = ScoringOf(config_);
  route.scale = static_cast<float>(config_.routed_scaling_factor);
  route.experts = activations_.experts.First(rows());
  route.weights = activations_.expert_weights.First(rows());
  return route;
}

// x -> sublayer_out.
Status Model::MixtureOfExperts(int layer, ForwardObserver* observer) {
  Activations& a = activations_;
  const int n = rows();
  const FfnWeights& w = Layer(layer).ffn;
  const RouteArgs route = RoutingArgs(layer);
  FATHOM_RETURN_IF_ERROR(backend_.Route(route));
  if (prefetch_ != nullptr) prefetch_->Routed(layer, route.experts);
  if (expert_use_ != nullptr) FATHOM_RETURN_IF_ERROR(NoteExperts(layer, route.experts));
  if (observer != nullptr) {
    HostView<int32_t> experts;
    HostView<float> weights;
    FATHOM_RETURN_IF_ERROR(experts.Read(backend_.memory(), route.experts));
    FATHOM_RETURN_IF_ERROR(weights.Read(backend_.memory(), route.weights));
    observer->OnRoute(layer, experts.view(), weights.view());
  }
  return backend_.Moe({a.x.First(n), a.experts.First(n), a.expert_weights.First(n), w.routed,
                       w.shared, static_cast<float>(config_.swiglu_limit),
                       a.sublayer_out.First(n)});
}

}  // namespace fathom
