// PluginBackend: a backend in a shared library, behind the table of backend_plugin.h.
//
// Translates operands and errors, and keeps what a plug-in is given and gives back within what the
// interface promises: operations stay within the prepared limits and the formats that the table
// names, and ids that the host reads are ids. Single-threaded like every Backend.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/plugin/backend_plugin.h"
#include "backend/plugin/convert.h"
#include "backend/plugin/plugin_call.h"
#include "backend/plugin/plugin_memory.h"

namespace fathom {

class PluginBackend final : public Backend {
 public:
  // `table` is one that CheckPluginTable returned, and its functions stay loaded. kUnimplemented
  // for numerics that it does not name; else what the plug-in's create says.
  static Result<std::unique_ptr<PluginBackend>> Create(const FathomBackendTable& table,
                                                       Numerics numerics);
  ~PluginBackend() override;

  // "plug-in " and what it calls itself, so that none is taken for one of fathom's.
  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] DeviceMemory& memory() override { return memory_; }
  // Whether operations take pages with such entries.
  [[nodiscard]] bool Holds(EntryEncoding encoding) const {
    return (table_.encodings & plugin::BitOf(encoding)) != 0;
  }
  // FATHOM_FEATURE_...
  [[nodiscard]] bool HasFeature(int feature) const {
    return (table_.features >> feature & 1u) != 0;
  }
  // Operations on more than these limits get kInvalidArgument.
  Status Prepare(const BackendLimits& limits) override;
  Status BeginStep(const StepPlan& plan) override;
  Status Synchronize() override;
  Status AddWeight(const WeightView& weight) override;

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

 private:
  PluginBackend(const FathomBackendTable& table, Numerics numerics, FathomBackend* backend);

  template <typename Args>
  Status Run(const char* what, FathomStatus (*operation)(FathomBackend*, const Args*, FathomError*),
             const Args& args) {
    return caller_.Call(what, operation, backend_, &args);
  }
  // The plan of BeginStep keeps its copy; any other is copied at each call.
  const FathomStepPlan* PlanOf(const StepPlan* plan);
  // kUnimplemented for pages with entries that the table does not name.
  [[nodiscard]] Status CheckPages(const char* what, const PageView& pages) const;
  // kInvalidArgument for steps beyond the limits.
  [[nodiscard]] Status CheckPlan(const StepPlan& plan) const;
  [[nodiscard]] Status CheckHeads(int64_t heads, int64_t head_dim) const;

  const FathomBackendTable table_;
  const std::string name_;
  const plugin::Caller caller_;
  FathomBackend* const backend_;
  plugin::PluginMemory memory_;
  BackendLimits limits_;
  const StepPlan* begun_ = nullptr;
  plugin::PlanCopy step_, other_;
  std::vector<FathomExpert> routed_;
  int64_t inexact_told_ = 0;
};

}  // namespace fathom
