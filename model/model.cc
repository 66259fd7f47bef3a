#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

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
                                             int max_rows, int64_t max_positions) {
  if (max_rows < 1) return InvalidArgument("a step needs room for at least one token");
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<ModelWeights> weights, ModelWeights::Build(checkpoint));
  FATHOM_RETURN_IF_ERROR(
      backend.Prepare(BackendLimitsFor(checkpoint.config(), max_rows, max_positions)));
  return std::unique_ptr<Model>(new Model(checkpoint, backend, std::move(weights), max_rows));
}

Model::Model(const Checkpoint& checkpoint, Backend& backend, std::unique_ptr<ModelWeights> weights,
             int max_rows)
    : config_(checkpoint.config()),
      backend_(backend),
      weights_(std::move(weights)),
      frequencies_plain_(RopeFrequencies(config_, false)),
      frequencies_compressed_(RopeFrequencies(config_, true)),
      activations_(config_, max_rows) {}

Status Model::Forward(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer) {
  FATHOM_RETURN_IF_ERROR(BeginStep(plan));
  const TensorView<float> hc = activations_.hc.First(plan.num_rows());
  FATHOM_RETURN_IF_ERROR(backend_.EmbedExpand({plan.token_ids, weights_->embed, hc}));
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    if (observer != nullptr) observer->OnHidden(layer, hc);
    FATHOM_RETURN_IF_ERROR(Block(layer, plan, hc, observer));
  }
  if (observer != nullptr) observer->OnHidden(config_.num_layers, hc);
  if (plan.logits_rows.empty()) return OkStatus();
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
  return backend_.Head(head);
}

Status Model::ForwardLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                           ForwardObserver* observer) {
  if (layer < 0 || layer >= config_.num_layers) {
    return InvalidArgument("layer " + std::to_string(layer) + " of " +
                           std::to_string(config_.num_layers));
  }
  FATHOM_RETURN_IF_ERROR(BeginStep(plan));
  return Block(layer, plan, hc, observer);
}

// What all layers share: the rotations of the step's positions.
Status Model::BeginStep(const StepPlan& plan) {
  const int n = plan.num_rows();
  if (n < 1 || n > max_rows()) {
    return InvalidArgument("a step of " + std::to_string(n) + " tokens, room for 1 to " +
                           std::to_string(max_rows()));
  }
  if (prefetch_ != nullptr) prefetch_->BeginStep(plan.token_ids);
  Activations& a = activations_;
  CollectAnchors(plan, 4, a.anchors_c4);
  CollectAnchors(plan, 128, a.anchors_c128);
  const TensorView<const float> plain = View(frequencies_plain_);
  const TensorView<const float> compressed = View(frequencies_compressed_);
  const auto rows = [](const std::vector<Position>& v) { return static_cast<int64_t>(v.size()); };
  FATHOM_RETURN_IF_ERROR(backend_.RopeTable({plan.positions, plain, a.rope_plain.First(n)}));
  FATHOM_RETURN_IF_ERROR(
      backend_.RopeTable({plan.positions, compressed, a.rope_compressed.First(n)}));
  FATHOM_RETURN_IF_ERROR(
      backend_.RopeTable({a.anchors_c4, compressed, a.rope_anchors_c4.First(rows(a.anchors_c4))}));
  return backend_.RopeTable(
      {a.anchors_c128, compressed, a.rope_anchors_c128.First(rows(a.anchors_c128))});
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
  const auto observe = [&](std::string_view name, TensorView<const float> values) {
    if (observer != nullptr) observer->OnTensor(layer, name, values);
  };

  FATHOM_RETURN_IF_ERROR(HcPreNorm(w.hc_attn, w.attn_norm, hc));
  observe("attn_in", a.x.First(n));
  FATHOM_RETURN_IF_ERROR(Attention(layer, plan, observer));
  observe("attn_out", a.sublayer_out.First(n));
  FATHOM_RETURN_IF_ERROR(
      backend_.HcPost({a.sublayer_out.First(n), a.post.First(n), a.comb.First(n), hc}));

  FATHOM_RETURN_IF_ERROR(HcPreNorm(w.hc_ffn, w.ffn_norm, hc));
  observe("ffn_in", a.x.First(n));
  FATHOM_RETURN_IF_ERROR(MixtureOfExperts(layer, plan, observer));
  observe("ffn_out", a.sublayer_out.First(n));
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
  if (observer != nullptr) {
    observer->OnTensor(layer, "q", a.q.First(n));
    observer->OnTensor(layer, "attn_o", a.attn_o.First(n));
  }

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
  if (observer != nullptr) observer->OnEntries(layer, args.entries, args.num_entries);
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
  if (observer != nullptr) observer->OnRoute(layer, route.experts, route.weights);
  return backend_.Moe({a.x.First(n), a.experts.First(n), a.expert_weights.First(n), w.routed,
                       w.shared, static_cast<float>(config_.swiglu_limit),
                       a.sublayer_out.First(n)});
}

}  // namespace fathom
