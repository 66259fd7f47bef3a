// A layer: what it computes, in the order in which data flows.
#include <cmath>

#include "model/host_view.h"
#include "model/model.h"

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

}  // namespace

Status Model::Block(int layer, TensorView<float> hc, ForwardObserver* observer) {
  if (prefetches_experts_) {
    FATHOM_RETURN_IF_ERROR(
        backend_.PrefetchExperts(Layer(layer).ffn.routed, rows(), config_.num_experts_per_token));
  }
  FATHOM_RETURN_IF_ERROR(BeforeAttention(layer, hc, observer));
  FATHOM_RETURN_IF_ERROR(Attend(layer, observer));
  return AfterAttention(layer, hc, observer);
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

Status Model::ReduceSublayer() {
  return communicator_.AllReduceSum(activations_.sublayer_out.First(rows()));
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
  const bool indexer = Layer(layer).ratio == 4;
  if (indexer) FATHOM_RETURN_IF_ERROR(lanes_.Pass(LaneEvent::kAttentionInput));
  const TensorView<float> q_flat(a.q.data(), n, a.q.row_size());
  FATHOM_RETURN_IF_ERROR(backend_.Linear({q_lora, {w.wq_b, q_flat}, {}, true}));
  if (Layer(layer).ratio != 0) FATHOM_RETURN_IF_ERROR(CompressorRows(w.compressor, false));
  if (!indexer) return OkStatus();
  FATHOM_RETURN_IF_ERROR(lanes_.OnSide([&] { return IndexerRows(w.indexer); }));
  return lanes_.Pass(LaneEvent::kIndexQueries);
}

// x and q_lora -> what the indexer's part of Attend takes.
Status Model::IndexerRows(const IndexerWeights& w) {
  Activations& a = activations_;
  const int n = rows();
  FATHOM_RETURN_IF_ERROR(CompressorRows(w.compressor, true));
  const TensorView<float> index_q(a.index_q.data(), n, a.index_q.row_size());
  FATHOM_RETURN_IF_ERROR(backend_.Linear({a.q_lora.First(n), {w.wq_b, index_q}, {}, true}));
  return backend_.Linear({a.x.First(n), {w.weights_proj, a.index_weights.First(n)}, {}, true});
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
  if (ratio == 4) FATHOM_RETURN_IF_ERROR(lanes_.Pass(LaneEvent::kAttend));
  FATHOM_RETURN_IF_ERROR(backend_.QNormRopeKvInsert(InsertArgs(layer)));
  // Entries that end in this step must be stored before its queries look for them.
  if (ratio != 0) {
    FATHOM_RETURN_IF_ERROR(backend_.CompressInsert(CompressArgs(layer, w.compressor, false)));
  }
  if (ratio == 4) {
    const auto select = [&]() -> Status {
      FATHOM_RETURN_IF_ERROR(
          backend_.CompressInsert(CompressArgs(layer, w.indexer.compressor, true)));
      return SelectEntries(layer, observer);
    };
    FATHOM_RETURN_IF_ERROR(lanes_.OnSide(select));
    FATHOM_RETURN_IF_ERROR(lanes_.Pass(LaneEvent::kSelection));
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
  FATHOM_RETURN_IF_ERROR(ReduceSublayer());
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "attn_out", a.sublayer_out.First(n)));
  FATHOM_RETURN_IF_ERROR(HcPost(hc));

  FATHOM_RETURN_IF_ERROR(HcPreNorm(Layer(layer).hc_ffn, Layer(layer).ffn_norm, hc));
  FATHOM_RETURN_IF_ERROR(Observe(observer, layer, "ffn_in", a.x.First(n)));
  FATHOM_RETURN_IF_ERROR(MixtureOfExperts(layer, observer));
  FATHOM_RETURN_IF_ERROR(ReduceSublayer());
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
  if (observer == nullptr || !observer->Wants(Observed::kEntries)) return OkStatus();
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
  if (observer != nullptr && observer->Wants(Observed::kRoute)) {
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

Status Model::Observe(ForwardObserver* observer, int layer, std::string_view name,
                      TensorView<const float> values) {
  if (observer == nullptr || !observer->Wants(Observed::kTensors)) return OkStatus();
  HostView<float> seen;
  FATHOM_RETURN_IF_ERROR(seen.Read(backend_.memory(), values));
  observer->OnTensor(layer, name, seen.view());
  return OkStatus();
}

}  // namespace fathom
