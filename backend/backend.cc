#include "backend/backend.h"

#include <limits>
#include <string>

namespace fathom {

Status Backend::Fits(const char* what, int64_t value, int64_t limit) {
  if (value <= limit) return OkStatus();
  return InvalidArgument(std::string(what) + ": " + std::to_string(value) +
                         " exceeds the prepared limit of " + std::to_string(limit));
}

Status Backend::CheckLimits(const BackendLimits& l) const {
  if (l.max_rows >= 1 && l.max_cols >= 1 && l.max_experts >= 0 && l.max_experts_per_token >= 0 &&
      l.max_expert_width >= 0 && l.num_expert_layers >= 0 && l.host_experts_per_layer >= 0 &&
      l.host_expert_bytes >= 0 && l.max_heads >= 0 && l.max_head_dim >= 0 && l.max_positions >= 0 &&
      l.max_positions <= std::numeric_limits<int32_t>::max()) {
    return OkStatus();
  }
  return InvalidArgument(std::string(name()) +
                         " backend: limits must be positive and positions fit in 32 bits");
}

Status Backend::EmbedExpand(const EmbedExpandArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoEmbedExpand(args);
}

Status Backend::HcPreNorm(const HcPreNormArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoHcPreNorm(args);
}

Status Backend::HcPost(const HcPostArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoHcPost(args);
}

Status Backend::RmsNorm(const RmsNormArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoRmsNorm(args);
}

Status Backend::Linear(const LinearArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoLinear(args);
}

Status Backend::RopeTable(const RopeTableArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoRopeTable(args);
}

Status Backend::QNormRopeKvInsert(const QNormRopeKvInsertArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoQNormRopeKvInsert(args);
}

Status Backend::CompressInsert(const CompressInsertArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoCompressInsert(args);
}

Status Backend::IndexerTopk(const IndexerTopkArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoIndexerTopk(args);
}

Status Backend::SparseAttention(const SparseAttentionArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoSparseAttention(args);
}

Status Backend::InverseRopeOut(const InverseRopeOutArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  if (args.quantise_input && numerics_ == Numerics::kExact) {
    return InvalidArgument("inverse_rope_out: quantise_input: exact numerics round nothing");
  }
  return DoInverseRopeOut(args);
}

Status Backend::Route(const RouteArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoRoute(args);
}

Status Backend::Moe(const MoeArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoMoe(args);
}

Status Backend::Head(const HeadArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoHead(args);
}

Status Backend::Sample(const SampleArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  return DoSample(args);
}

Status Backend::DoSample(const SampleArgs& /*args*/) {
  return Unimplemented(std::string(name()) + " backend: sample is not among its operations");
}

}  // namespace fathom
