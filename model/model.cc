#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "backend/pinned_memory.h"
#include "model/rope.h"

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

BackendLimits BackendLimitsFor(const ModelConfig& c, int max_rows, int64_t max_positions) {
  BackendLimits limits;
  limits.max_rows = max_rows;
  limits.max_cols = std::max({c.hidden_size, c.q_lora_rank, c.o_groups * c.o_lora_rank,
                              c.moe_intermediate_size * std::max(1, c.num_shared_experts),
                              c.num_heads / c.o_groups * c.head_dim});
  limits.max_experts = c.num_experts;
  limits.max_experts_per_token = c.num_experts_per_token;
  limits.max_expert_width = c.moe_intermediate_size * std::max(1, c.num_shared_experts);
  limits.max_heads = std::max(c.num_heads, c.index_num_heads);
  limits.max_head_dim = std::max(c.head_dim, c.index_head_dim);
  limits.max_positions = max_positions;
  return limits;
}

Result<std::unique_ptr<Model>> Model::Create(const Checkpoint& checkpoint, Backend& backend,
                                             int max_rows, int64_t max_positions,
                                             const WeightUpload& upload) {
  if (max_rows < 1) return InvalidArgument("a step needs room for at least one token");
  std::unique_ptr<Model> model(new Model(checkpoint, backend));
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
  FATHOM_RETURN_IF_ERROR(backend.Prepare(BackendLimitsFor(config, max_rows, max_positions)));
  for (const LayerWeights& layer : model->weights_->layers) {
    const AttentionWeights& a = layer.attn;
    const ExpertWeights& shared = layer.ffn.shared;
    for (const WeightView* matrix : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &a.indexer.wq_b,
                                     &shared.w1, &shared.w2, &shared.w3}) {
      if (!matrix->empty()) FATHOM_RETURN_IF_ERROR(backend.AddWeight(*matrix));
    }
  }
  FATHOM_ASSIGN_OR_RETURN(model->activations_, Activations::Create(config, max_rows, memory));
  model->frequencies_plain_ = RopeFrequencies(config, false);
  model->frequencies_compressed_ = RopeFrequencies(config, true);
  model->rope_plain_ = View(model->frequencies_plain_);
  model->rope_compressed_ = View(model->frequencies_compressed_);
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
  const int64_t rows = std::min(max_rows, kDeviceLogitsRows);
  FATHOM_ASSIGN_OR_RETURN(
      model->logits_buffer_,
      memory.Allocate(rows * config.vocab_size * static_cast<int64_t>(sizeof(float))));
  model->logits_ = {reinterpret_cast<float*>(model->logits_buffer_.data()), rows,
                    int64_t{config.vocab_size}};
  return model;
}

std::vector<int64_t> Model::DeviceBuffers(const ModelConfig& config, int max_rows) {
  const auto frequencies = static_cast<int64_t>(RopeFrequencies(config, false).size());
  const int64_t logits_rows = std::min(max_rows, kDeviceLogitsRows);
  return {Activations::Bytes(config, max_rows), 2 * int64_t{sizeof(float)} * frequencies,
          logits_rows * config.vocab_size * static_cast<int64_t>(sizeof(float))};
}

Status Model::CountExpertUse() {
  expert_use_ = std::make_unique<ExpertUse>(config_);
  const int64_t ids = int64_t{config_.num_layers} * max_rows() * config_.num_experts_per_token;
  noted_.reserve(static_cast<size_t>(config_.num_layers));
  noted_ids_.resize(static_cast<size_t>(ids));
  if (backend_.memory().host_readable()) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(noted_buffer_,
                          backend_.memory().Allocate(ids * int64_t{sizeof(int32_t)}));
  return OkStatus();
}

Status Model::NoteExperts(int layer, TensorView<const int32_t> experts) {
  int64_t begin = 0;
  for (const Noted& noted : noted_) begin += noted.ids;
  noted_.push_back({layer, experts.size()});
  const auto bytes = std::as_bytes(experts.elements());
  if (noted_buffer_.data() == nullptr) {
    std::memcpy(noted_ids_.data() + begin, bytes.data(), bytes.size());
    return OkStatus();
  }
  return backend_.memory().CopyWithin(noted_buffer_.data() + begin * int64_t{sizeof(int32_t)},
                                      bytes.data(), static_cast<int64_t>(bytes.size()));
}

Status Model::CountNotedExperts() {
  size_t total = 0;
  for (const Noted& noted : noted_) total += static_cast<size_t>(noted.ids);
  const auto ids = std::span(noted_ids_).first(total);
  if (noted_buffer_.data() != nullptr) {
    FATHOM_RETURN_IF_ERROR(
        backend_.memory().CopyOut(std::as_writable_bytes(ids), noted_buffer_.data()));
  }
  size_t begin = 0;
  for (const Noted& noted : noted_) {
    expert_use_->Add(noted.layer, ids.subspan(begin, static_cast<size_t>(noted.ids)));
    begin += static_cast<size_t>(noted.ids);
  }
  return OkStatus();
}

Status Model::Forward(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer) {
  return EndStep(Run(plan, logits, observer));
}

Status Model::EndStep(Status status) {
  Status done = backend_.Synchronize();
  if (!status.ok() || !done.ok()) return status.ok() ? done : status;
  return expert_use_ == nullptr ? OkStatus() : CountNotedExperts();
}

Status Model::Run(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer) {
  FATHOM_RETURN_IF_ERROR(BeginStep(plan));
  const TensorView<float> hc = activations_.hc.First(plan.num_rows());
  FATHOM_RETURN_IF_ERROR(backend_.EmbedExpand({plan.token_ids, weights_->embed, hc}));
  for (int layer = 0; layer <= config_.num_layers; ++layer) {
    if (observer != nullptr) {
      HostView<float> seen;
      FATHOM_RETURN_IF_ERROR(seen.Read(backend_.memory(), hc));
      observer->OnHidden(layer, seen.view());
    }
    if (layer < config_.num_layers) FATHOM_RETURN_IF_ERROR(Block(layer, plan, hc, observer));
  }
  return plan.logits_rows.empty() ? OkStatus() : Head(plan, hc, logits);
}

Status Model::Head(const StepPlan& plan, TensorView<const float> hc, TensorView<float> logits) {
  HeadArgs head;
  head.hc = hc;
  head.rows = plan.logits_rows;
  head.fn = weights_->hc_head.fn;
  head.base = weights_->hc_head.base;
  head.scale = weights_->hc_head.scale;
  head.norm_weight = weights_->norm;
  head.head = weights_->head;
  head.norm_eps = static_cast<float>(config_.rms_norm_eps);
  head.hc_eps = static_cast<float>(config_.hc_eps);
  head.logits = logits;
  if (logits_.empty()) return backend_.Head(head);
  const auto total = static_cast<int64_t>(plan.logits_rows.size());
  for (int64_t begin = 0; begin < total; begin += logits_.dim(0)) {
    const int64_t n = std::min(logits_.dim(0), total - begin);
    head.rows = plan.logits_rows.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
    head.logits = logits_.First(n);
    FATHOM_RETURN_IF_ERROR(backend_.Head(head));
    FATHOM_RETURN_IF_ERROR(backend_.memory().CopyOut(
        std::as_writable_bytes(logits.Slice(begin, n).elements()), logits_buffer_.data()));
  }
  return OkStatus();
}

Status Model::ForwardLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                           ForwardObserver* observer) {
  if (layer < 0 || layer >= config_.num_layers) {
    return InvalidArgument("layer " + std::to_string(layer) + " of " +
                           std::to_string(config_.num_layers));
  }
  return EndStep(RunLayer(layer, plan, hc, observer));
}

Status Model::RunLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                       ForwardObserver* observer) {
  FATHOM_RETURN_IF_ERROR(BeginStep(plan));
  DeviceMemory& memory = backend_.memory();
  if (memory.host_readable()) return Block(layer, plan, hc, observer);
  const TensorView<float> copy = activations_.hc.First(plan.num_rows());
  if (copy.shape() != hc.shape()) return InvalidArgument("the residual stream has another shape");
  auto* const data = reinterpret_cast<std::byte*>(copy.data());
  FATHOM_RETURN_IF_ERROR(memory.CopyIn(data, std::as_bytes(hc.elements())));
  FATHOM_RETURN_IF_ERROR(Block(layer, plan, copy, observer));
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

// What all layers share: the plan, and the rotations of the step's positions.
Status Model::BeginStep(const StepPlan& plan) {
  const int n = plan.num_rows();
  if (n < 1 || n > max_rows()) {
    return InvalidArgument("a step of " + std::to_string(n) + " tokens, room for 1 to " +
                           std::to_string(max_rows()));
  }
  if (prefetch_ != nullptr) prefetch_->BeginStep(plan.token_ids);
  noted_.clear();
  FATHOM_RETURN_IF_ERROR(backend_.BeginStep(plan));
  Activations& a = activations_;
  CollectAnchors(plan, 4, a.anchors_c4);
  CollectAnchors(plan, 128, a.anchors_c128);
  const auto rows = [](const std::vector<Position>& v) { return static_cast<int64_t>(v.size()); };
  FATHOM_RETURN_IF_ERROR(backend_.RopeTable({plan.positions, rope_plain_, a.rope_plain.First(n)}));
  FATHOM_RETURN_IF_ERROR(
      backend_.RopeTable({plan.positions, rope_compressed_, a.rope_compressed.First(n)}));
  FATHOM_RETURN_IF_ERROR(backend_.RopeTable(
      {a.anchors_c4, rope_compressed_, a.rope_anchors_c4.First(rows(a.anchors_c4))}));
  return backend_.RopeTable(
      {a.anchors_c128, rope_compressed_, a.rope_anchors_c128.First(rows(a.anchors_c128))});
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

Status Model::Block(int layer, const StepPlan& plan, TensorView<float> hc,
                    ForwardObserver* observer) {
  Activations& a = activations_;
  const int n = plan.num_rows();
  const LayerWeights& w = weights_->layers[static_cast<size_t>(layer)];

  FATHOM_RETURN_IF_ERROR(HcPreNorm(w.hc_attn, w.attn_norm, hc));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "attn_in", a.x.First(n)));
  FATHOM_RETURN_IF_ERROR(Attention(layer, plan, observer));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "attn_out", a.sublayer_out.First(n)));
  FATHOM_RETURN_IF_ERROR(
      backend_.HcPost({a.sublayer_out.First(n), a.post.First(n), a.comb.First(n), hc}));

  FATHOM_RETURN_IF_ERROR(HcPreNorm(w.hc_ffn, w.ffn_norm, hc));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "ffn_in", a.x.First(n)));
  FATHOM_RETURN_IF_ERROR(MixtureOfExperts(layer, plan, observer));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "ffn_out", a.sublayer_out.First(n)));
  return backend_.HcPost({a.sublayer_out.First(n), a.post.First(n), a.comb.First(n), hc});
}

// x -> sublayer_out.
Status Model::Attention(int layer, const StepPlan& plan, ForwardObserver* observer) {
  Activations& a = activations_;
  const int n = plan.num_rows();
  const LayerWeights& layer_weights = weights_->layers[static_cast<size_t>(layer)];
  const AttentionWeights& w = layer_weights.attn;
  const int ratio = layer_weights.ratio;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  // Layers with a compressor rotate everything with its table, window keys included.
  const TensorView<const float> rope = (ratio == 0 ? a.rope_plain : a.rope_compressed).First(n);

  const TensorView<float> q_lora = a.q_lora.First(n);
  FATHOM_RETURN_IF_ERROR(
      backend_.Linear({a.x.First(n), {w.wq_a, q_lora}, {w.wkv, a.kv.First(n)}, true}));
  FATHOM_RETURN_IF_ERROR(backend_.RmsNorm({q_lora, w.q_norm, eps, q_lora}));
  const TensorView<float> q_flat(a.q.data(), n, a.q.row_size());
  FATHOM_RETURN_IF_ERROR(backend_.Linear({q_lora, {w.wq_b, q_flat}, {}, true}));
  FATHOM_RETURN_IF_ERROR(
      backend_.QNormRopeKvInsert({a.q.First(n), a.kv.First(n), w.kv_norm, rope, eps, &plan,
                                  plan.Pages(layer, CacheKind::kSwaKv), a.step_kv.First(n)}));

  // Entries that end in this step must be stored before its queries look for them.
  if (ratio != 0) FATHOM_RETURN_IF_ERROR(Compress(layer, w.compressor, false, plan));
  if (ratio == 4) {
    FATHOM_RETURN_IF_ERROR(Compress(layer, w.indexer.compressor, true, plan));
    FATHOM_RETURN_IF_ERROR(SelectEntries(layer, plan, observer));
  }

  SparseAttentionArgs attention;
  attention.q = a.q.First(n);
  attention.plan = &plan;
  attention.step_kv = a.step_kv.First(n);
  attention.swa = plan.Pages(layer, CacheKind::kSwaKv);
  attention.window = config_.window;
  attention.ratio = ratio;
  if (ratio != 0) {
    attention.compressed_kind = ratio == 4 ? CacheKind::kC4Kv : CacheKind::kC128Kv;
    attention.compressed = plan.Pages(layer, attention.compressed_kind);
  }
  if (ratio == 4) {
    attention.entries = a.entries.First(n);
    attention.num_entries = a.num_entries.First(n);
  }
  attention.sink = w.sink;
  attention.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  attention.out = a.attn_o.First(n);
  FATHOM_RETURN_IF_ERROR(backend_.SparseAttention(attention));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "q", a.q.First(n)));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "attn_o", a.attn_o.First(n)));

  const TensorView<float> o_lora = a.o_lora.First(n);
  FATHOM_RETURN_IF_ERROR(
      backend_.InverseRopeOut({a.attn_o.First(n), rope, w.wo_a, config_.o_groups, o_lora}));
  return backend_.Linear({o_lora, {w.wo_b, a.sublayer_out.First(n)}, {}, true});
}

Status Model::Compress(int layer, const CompressorWeights& w, bool index_side,
                       const StepPlan& plan) {
  Activations& a = activations_;
  const int n = plan.num_rows();
  CompressInsertArgs args;
  args.ratio = weights_->layers[static_cast<size_t>(layer)].ratio;
  const TensorView<float> kv_rows = a.KvRows(n, w.wkv.rows);
  const TensorView<float> score_rows = a.ScoreRows(n, w.wgate.rows);
  FATHOM_RETURN_IF_ERROR(backend_.Linear(
      {a.x.First(n), {w.wkv, kv_rows}, {w.wgate, score_rows}, /*round_output=*/false}));
  args.kv_rows = kv_rows;
  args.score_rows = score_rows;
  args.ape = w.ape;
  args.norm_weight = w.norm;
  args.norm_eps = static_cast<float>(config_.rms_norm_eps);
  args.index_side = index_side;
  args.plan = &plan;
  if (args.ratio == 4) {
    args.anchor_cos_sin = a.rope_anchors_c4.First(static_cast<int64_t>(a.anchors_c4.size()));
    args.state_kind = index_side ? CacheKind::kC4IndexState : CacheKind::kC4State;
    args.out_kind = index_side ? CacheKind::kC4IndexKeys : CacheKind::kC4Kv;
  } else {
    args.anchor_cos_sin = a.rope_anchors_c128.First(static_cast<int64_t>(a.anchors_c128.size()));
    args.state_kind = CacheKind::kC128State;
    args.out_kind = CacheKind::kC128Kv;
  }
  args.state = plan.Pages(layer, args.state_kind);
  args.out = plan.Pages(layer, args.out_kind);
  return backend_.CompressInsert(args);
}

Status Model::SelectEntries(int layer, const StepPlan& plan, ForwardObserver* observer) {
  Activations& a = activations_;
  const int n = plan.num_rows();
  const IndexerWeights& w = weights_->layers[static_cast<size_t>(layer)].attn.indexer;
  const TensorView<float> q_flat(a.index_q.data(), n, a.index_q.row_size());
  FATHOM_RETURN_IF_ERROR(backend_.Linear({a.q_lora.First(n), {w.wq_b, q_flat}, {}, true}));
  FATHOM_RETURN_IF_ERROR(
      backend_.Linear({a.x.First(n), {w.weights_proj, a.index_weights.First(n)}, {}, true}));
  IndexerTopkArgs args;
  args.q = a.index_q.First(n);
  args.head_weights = a.index_weights.First(n);
  args.cos_sin = a.rope_compressed.First(n);
  args.plan = &plan;
  args.keys = plan.Pages(layer, CacheKind::kC4IndexKeys);
  args.topk = config_.index_topk;
  args.entries = a.entries.First(n);
  args.num_entries = a.num_entries.First(n);
  FATHOM_RETURN_IF_ERROR(backend_.IndexerTopk(args));
  if (observer == nullptr) return OkStatus();
  HostView<int32_t> entries, num_entries;
  FATHOM_RETURN_IF_ERROR(entries.Read(backend_.memory(), args.entries));
  FATHOM_RETURN_IF_ERROR(num_entries.Read(backend_.memory(), args.num_entries));
  observer->OnEntries(layer, entries.view(), num_entries.view());
  return OkStatus();
}

// x -> sublayer_out.
Status Model::MixtureOfExperts(int layer, const StepPlan& plan, ForwardObserver* observer) {
  Activations& a = activations_;
  const int n = plan.num_rows();
  const FfnWeights& w = weights_->layers[static_cast<size_t>(layer)].ffn;
  RouteArgs route;
  route.x = a.x.First(n);
  route.gate = w.gate;
  route.bias = w.bias;
  route.hash_table = w.hash_table;
  route.token_ids = plan.token_ids;
  route.scoring = ScoringOf(config_);
  route.scale = static_cast<float>(config_.routed_scaling_factor);
  route.experts = a.experts.First(n);
  route.weights = a.expert_weights.First(n);
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
