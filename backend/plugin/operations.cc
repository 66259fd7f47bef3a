// The operations: each checks the limits, fills in the interface's operands and calls.
#include <string>

#include "backend/plugin/plugin_backend.h"

namespace fathom {

using plugin::Sized;
using plugin::ToC;

Status PluginBackend::DoRopeTable(const RopeTableArgs& args) {
  const auto n = static_cast<int64_t>(args.positions.size());
  FATHOM_RETURN_IF_ERROR(Fits("rope_table: positions", n, limits_.max_rows));
  auto c = Sized<FathomRopeTableArgs>();
  c.positions = args.positions.data();
  c.num_positions = n;
  c.frequencies = ToC(args.frequencies);
  c.cos_sin = ToC(args.cos_sin);
  return Run("rope_table", table_.rope_table, c);
}

Status PluginBackend::DoEmbedExpand(const EmbedExpandArgs& args) {
  const auto n = static_cast<int64_t>(args.token_ids.size());
  FATHOM_RETURN_IF_ERROR(Fits("embed_expand: rows", n, limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("embed_expand: columns", args.table.cols, limits_.max_cols));
  auto c = Sized<FathomEmbedExpandArgs>();
  c.token_ids = args.token_ids.data();
  c.num_token_ids = n;
  c.table = ToC(args.table);
  c.hc = ToC(args.hc);
  return Run("embed_expand", table_.embed_expand, c);
}

Status PluginBackend::DoHcPreNorm(const HcPreNormArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("hc_pre_norm: rows", args.hc.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("hc_pre_norm: columns", args.hc.dim(2), limits_.max_cols));
  auto c = Sized<FathomHcPreNormArgs>();
  c.hc = ToC(args.hc);
  c.fn = ToC(args.fn);
  c.base = ToC(args.base);
  c.scale = ToC(args.scale);
  c.norm_weight = ToC(args.norm_weight);
  c.x = ToC(args.x);
  c.post = ToC(args.post);
  c.comb = ToC(args.comb);
  c.norm_eps = args.norm_eps;
  c.hc_eps = args.hc_eps;
  c.sinkhorn_iters = args.sinkhorn_iters;
  return Run("hc_pre_norm", table_.hc_pre_norm, c);
}

Status PluginBackend::DoHcPost(const HcPostArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("hc_post: rows", args.hc.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("hc_post: columns", args.hc.dim(2), limits_.max_cols));
  auto c = Sized<FathomHcPostArgs>();
  c.out = ToC(args.out);
  c.post = ToC(args.post);
  c.comb = ToC(args.comb);
  c.hc = ToC(args.hc);
  return Run("hc_post", table_.hc_post, c);
}

Status PluginBackend::DoRmsNorm(const RmsNormArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("rms_norm: rows", args.x.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("rms_norm: columns", args.x.dim(1), limits_.max_cols));
  auto c = Sized<FathomRmsNormArgs>();
  c.x = ToC(args.x);
  c.weight = ToC(args.weight);
  c.out = ToC(args.out);
  c.eps = args.eps;
  return Run("rms_norm", table_.rms_norm, c);
}

Status PluginBackend::DoLinear(const LinearArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("linear: rows", args.x.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("linear: columns", args.x.dim(1), limits_.max_cols));
  auto c = Sized<FathomLinearArgs>();
  c.x = ToC(args.x);
  c.first = ToC(args.first.weight);
  c.first_out = ToC(args.first.out);
  c.second = ToC(args.second.weight);
  if (c.second.data != nullptr) c.second_out = ToC(args.second.out);
  c.round_output = args.round_output ? 1 : 0;
  return Run("linear", table_.linear, c);
}

Status PluginBackend::DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) {
  FATHOM_RETURN_IF_ERROR(CheckPlan(*args.plan));
  FATHOM_RETURN_IF_ERROR(CheckHeads(args.q.dim(1), args.q.dim(2)));
  FATHOM_RETURN_IF_ERROR(CheckPages("window entries", args.swa));
  auto c = Sized<FathomQNormRopeKvInsertArgs>();
  c.q = ToC(args.q);
  c.kv = ToC(args.kv);
  c.kv_norm_weight = ToC(args.kv_norm_weight);
  c.cos_sin = ToC(args.cos_sin);
  c.plan = PlanOf(args.plan);
  c.swa = ToC(args.swa);
  c.step_kv = ToC(args.step_kv);
  c.norm_eps = args.norm_eps;
  return Run("q_norm_rope_kv_insert", table_.q_norm_rope_kv_insert, c);
}

Status PluginBackend::DoCompressInsert(const CompressInsertArgs& args) {
  FATHOM_RETURN_IF_ERROR(CheckPlan(*args.plan));
  FATHOM_RETURN_IF_ERROR(CheckHeads(0, args.norm_weight.dim(0)));
  FATHOM_RETURN_IF_ERROR(CheckPages("compressor rows", args.state));
  FATHOM_RETURN_IF_ERROR(
      CheckPages(args.index_side ? "index keys" : "compressed entries", args.out));
  auto c = Sized<FathomCompressInsertArgs>();
  c.kv_rows = ToC(args.kv_rows);
  c.score_rows = ToC(args.score_rows);
  c.ape = ToC(args.ape);
  c.norm_weight = ToC(args.norm_weight);
  c.anchor_cos_sin = ToC(args.anchor_cos_sin);
  c.plan = PlanOf(args.plan);
  c.state = ToC(args.state);
  c.out = ToC(args.out);
  c.norm_eps = args.norm_eps;
  c.ratio = args.ratio;
  c.index_side = args.index_side ? 1 : 0;
  c.state_kind = ToC(args.state_kind);
  c.out_kind = ToC(args.out_kind);
  return Run("compress_insert", table_.compress_insert, c);
}

Status PluginBackend::DoIndexerTopk(const IndexerTopkArgs& args) {
  FATHOM_RETURN_IF_ERROR(CheckPlan(*args.plan));
  FATHOM_RETURN_IF_ERROR(CheckHeads(args.q.dim(1), args.q.dim(2)));
  FATHOM_RETURN_IF_ERROR(CheckPages("index keys", args.keys));
  auto c = Sized<FathomIndexerTopkArgs>();
  c.q = ToC(args.q);
  c.head_weights = ToC(args.head_weights);
  c.cos_sin = ToC(args.cos_sin);
  c.plan = PlanOf(args.plan);
  c.keys = ToC(args.keys);
  c.entries = ToC(args.entries);
  c.num_entries = ToC(args.num_entries);
  c.topk = args.topk;
  FATHOM_RETURN_IF_ERROR(Run("indexer_topk", table_.indexer_topk, c));
  if (!memory_.host_readable()) return OkStatus();
  for (const int32_t n : args.num_entries.elements()) {
    if (n >= 0 && n <= args.topk) continue;
    return caller_.Broken("indexer_topk: left " + std::to_string(n) + " entries of at most " +
                          std::to_string(args.topk));
  }
  return OkStatus();
}

Status PluginBackend::DoSparseAttention(const SparseAttentionArgs& args) {
  FATHOM_RETURN_IF_ERROR(CheckPlan(*args.plan));
  FATHOM_RETURN_IF_ERROR(CheckHeads(args.q.dim(1), args.q.dim(2)));
  FATHOM_RETURN_IF_ERROR(CheckPages("window entries", args.swa));
  FATHOM_RETURN_IF_ERROR(CheckPages("compressed entries", args.compressed));
  auto c = Sized<FathomSparseAttentionArgs>();
  c.q = ToC(args.q);
  c.step_kv = ToC(args.step_kv);
  c.plan = PlanOf(args.plan);
  c.swa = ToC(args.swa);
  c.compressed = ToC(args.compressed);
  c.entries = ToC(args.entries);
  c.num_entries = ToC(args.num_entries);
  c.sink = ToC(args.sink);
  c.out = ToC(args.out);
  c.scale = args.scale;
  c.window = args.window;
  c.ratio = args.ratio;
  c.compressed_kind = ToC(args.compressed_kind);
  return Run("sparse_attention", table_.sparse_attention, c);
}

Status PluginBackend::DoInverseRopeOut(const InverseRopeOutArgs& args) {
  if (args.quantise_input && !HasFeature(FATHOM_FEATURE_E4M3_HEADS)) {
    return Unimplemented(name_ + ": inverse_rope_out has no e4m3 inputs");
  }
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: rows", args.o.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(CheckHeads(args.o.dim(1), args.o.dim(2)));
  FATHOM_RETURN_IF_ERROR(Fits("inverse_rope_out: columns", args.wo_a.cols, limits_.max_cols));
  auto c = Sized<FathomInverseRopeOutArgs>();
  c.o = ToC(args.o);
  c.cos_sin = ToC(args.cos_sin);
  c.wo_a = ToC(args.wo_a);
  c.out = ToC(args.out);
  c.groups = args.groups;
  c.quantise_input = args.quantise_input ? 1 : 0;
  return Run("inverse_rope_out", table_.inverse_rope_out, c);
}

Status PluginBackend::DoRoute(const RouteArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("route: rows", args.x.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("route: columns", args.x.dim(1), limits_.max_cols));
  FATHOM_RETURN_IF_ERROR(Fits("route: experts", args.gate.rows, limits_.max_experts));
  FATHOM_RETURN_IF_ERROR(
      Fits("route: experts per token", args.experts.dim(1), limits_.max_experts_per_token));
  auto c = Sized<FathomRouteArgs>();
  c.x = ToC(args.x);
  c.gate = ToC(args.gate);
  c.bias = ToC(args.bias);
  c.hash_table = ToC(args.hash_table);
  c.token_ids = args.token_ids.data();
  c.num_token_ids = static_cast<int64_t>(args.token_ids.size());
  c.experts = ToC(args.experts);
  c.weights = ToC(args.weights);
  c.scale = args.scale;
  switch (args.scoring) {
    case RouteScoring::kSqrtSoftplus:
      c.scoring = FATHOM_SQRT_SOFTPLUS;
      break;
    case RouteScoring::kSigmoid:
      c.scoring = FATHOM_SIGMOID;
      break;
    case RouteScoring::kSoftmax:
      c.scoring = FATHOM_SOFTMAX;
      break;
  }
  FATHOM_RETURN_IF_ERROR(Run("route", table_.route, c));
  if (!memory_.host_readable()) return OkStatus();
  // The host looks the experts' weights up to have them read from disk.
  for (const int32_t id : args.experts.elements()) {
    if (id >= 0 && id < args.gate.rows) continue;
    return caller_.Broken("route: chose expert " + std::to_string(id) + " of " +
                          std::to_string(args.gate.rows));
  }
  return OkStatus();
}

Status PluginBackend::DoMoe(const MoeArgs& args) {
  const auto num_experts = static_cast<int64_t>(args.routed.size());
  FATHOM_RETURN_IF_ERROR(Fits("moe: rows", args.x.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("moe: columns", args.x.dim(1), limits_.max_cols));
  FATHOM_RETURN_IF_ERROR(Fits("moe: experts", num_experts, limits_.max_experts));
  FATHOM_RETURN_IF_ERROR(
      Fits("moe: experts per token", args.experts.dim(1), limits_.max_experts_per_token));
  FATHOM_RETURN_IF_ERROR(Fits("moe: shared expert", args.shared.w1.rows, limits_.max_expert_width));
  if (memory_.host_readable()) FATHOM_RETURN_IF_ERROR(CheckExpertIds(args));
  routed_.clear();
  for (const ExpertWeights& expert : args.routed) {
    FATHOM_RETURN_IF_ERROR(Fits("moe: expert", expert.w1.rows, limits_.max_expert_width));
    routed_.push_back(ToC(expert));
  }
  auto c = Sized<FathomMoeArgs>();
  c.x = ToC(args.x);
  c.experts = ToC(args.experts);
  c.weights = ToC(args.weights);
  c.routed = routed_.data();
  c.num_routed = num_experts;
  c.shared = ToC(args.shared);
  c.out = ToC(args.out);
  c.swiglu_limit = args.swiglu_limit;
  return Run("moe", table_.moe, c);
}

Status PluginBackend::DoHead(const HeadArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("head: rows", args.hc.dim(0), limits_.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("head: columns", args.hc.dim(2), limits_.max_cols));
  const auto num_rows = static_cast<int64_t>(args.rows.size());
  FATHOM_RETURN_IF_ERROR(Fits("head: rows of logits", num_rows, limits_.max_rows));
  auto c = Sized<FathomHeadArgs>();
  c.hc = ToC(args.hc);
  c.rows = args.rows.data();
  c.num_rows = num_rows;
  c.fn = ToC(args.fn);
  c.base = ToC(args.base);
  c.scale = ToC(args.scale);
  c.norm_weight = ToC(args.norm_weight);
  c.head = ToC(args.head);
  c.logits = ToC(args.logits);
  c.norm_eps = args.norm_eps;
  c.hc_eps = args.hc_eps;
  return Run("head", table_.head, c);
}

}  // namespace fathom
