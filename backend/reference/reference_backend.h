// ReferenceBackend: the scalar meaning of every operation, written to be read.
//
// One operation per file, one loop nest each. Sums are taken in double and rounded to fp32 once, so
// no accumulation order is favoured; everything else follows the contract in backend/ops/. It is
// the oracle that other backends are compared with and it is compared with the goldens itself.
// Single-threaded, slow, allocates freely.
#pragma once

#include "backend/backend.h"

namespace fathom {

class ReferenceBackend final : public Backend {
 public:
  explicit ReferenceBackend(Numerics numerics) : Backend(numerics) {}

  [[nodiscard]] std::string_view name() const override { return "reference"; }
  Status Prepare(const BackendLimits& limits) override;
  [[nodiscard]] bool samples() const override { return true; }

 protected:
  Status DoEmbedExpand(const EmbedExpandArgs& args) override;
  Status DoHcPreNorm(const HcPreNormArgs& args) override;
  Status DoHcPost(const HcPostArgs& args) override;
  Status DoRmsNorm(const RmsNormArgs& args) override;
  Status DoLinear(const LinearArgs& args) override;
  Status DoRopeTable(const RopeTableArgs& args) override;
  Status DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) override;
  Status DoCompressInsert(const CompressInsertArgs& args) override;
  Status DoIndexerTopk(const IndexerTopkArgs& args) override;
  Status DoSparseAttention(const SparseAttentionArgs& args) override;
  Status DoInverseRopeOut(const InverseRopeOutArgs& args) override;
  Status DoRoute(const RouteArgs& args) override;
  Status DoMoe(const MoeArgs& args) override;
  Status DoHead(const HeadArgs& args) override;
  Status DoSample(const SampleArgs& args) override;
};

}  // namespace fathom
