#include "backend/plugin/plugin_backend.h"

#include <algorithm>

namespace fathom {

using plugin::Sized;
using plugin::ToC;

namespace {

const char* Name(Numerics numerics) { return numerics == Numerics::kExact ? "exact" : "official"; }

std::string NameOf(const FathomBackendTable& table) { return "plug-in " + std::string(table.name); }

int32_t ToC(Numerics numerics) {
  return numerics == Numerics::kExact ? FATHOM_EXACT : FATHOM_OFFICIAL;
}

}  // namespace

Result<std::unique_ptr<PluginBackend>> PluginBackend::Create(const FathomBackendTable& table,
                                                             Numerics numerics) {
  const std::string name = NameOf(table);
  const plugin::Caller caller(name);
  if ((table.numerics & 1u << ToC(numerics)) == 0) {
    return Unimplemented(name + ": has no " + Name(numerics) + " numerics");
  }
  auto args = Sized<FathomCreateArgs>();
  args.host_major = FATHOM_PLUGIN_MAJOR;
  args.host_minor = FATHOM_PLUGIN_MINOR;
  args.numerics = ToC(numerics);
  FathomBackend* backend = nullptr;
  FATHOM_RETURN_IF_ERROR(
      caller.Call("create", table.create, const_cast<const FathomCreateArgs*>(&args), &backend));
  if (backend == nullptr) return caller.Broken("create: succeeded without a backend");
  return std::unique_ptr<PluginBackend>(new PluginBackend(table, numerics, backend));
}

PluginBackend::PluginBackend(const FathomBackendTable& table, Numerics numerics,
                             FathomBackend* backend)
    : Backend(numerics),
      table_(table),
      name_(NameOf(table)),
      caller_(name_),
      backend_(backend),
      memory_(table_, caller_, backend) {}

PluginBackend::~PluginBackend() {
  try {
    table_.destroy(backend_);
  } catch (...) {  // nobody could use it here
  }
}

Status PluginBackend::Prepare(const BackendLimits& limits) {
  FATHOM_RETURN_IF_ERROR(CheckLimits(limits));
  auto c = Sized<FathomLimits>();
  c.max_rows = limits.max_rows;
  c.max_cols = limits.max_cols;
  c.max_experts = limits.max_experts;
  c.max_experts_per_token = limits.max_experts_per_token;
  c.max_expert_width = limits.max_expert_width;
  c.max_heads = limits.max_heads;
  c.max_head_dim = limits.max_head_dim;
  c.max_positions = limits.max_positions;
  FATHOM_RETURN_IF_ERROR(Run("prepare", table_.prepare, c));
  limits_ = limits;
  routed_.reserve(static_cast<size_t>(limits.max_experts));
  return OkStatus();
}

Status PluginBackend::BeginStep(const StepPlan& plan) {
  begun_ = &plan;
  const FathomStepPlan* const step = step_.Set(plan);
  if (table_.begin_step == nullptr) return OkStatus();
  FATHOM_RETURN_IF_ERROR(CheckPlan(plan));
  return caller_.Call("begin_step", table_.begin_step, backend_, step);
}

Status PluginBackend::Synchronize() {
  Status status = table_.synchronize == nullptr
                      ? OkStatus()
                      : caller_.Call("synchronize", table_.synchronize, backend_);
  try {
    const int64_t inexact = table_.num_inexact_entries(backend_);
    if (inexact > inexact_told_) CountInexactEntries(inexact - inexact_told_);
    inexact_told_ = std::max(inexact_told_, inexact);
  } catch (...) {
    if (status.ok()) status = caller_.Broken("num_inexact_entries threw an exception");
  }
  return status;
}

Status PluginBackend::AddWeight(const WeightView& weight) {
  if (table_.add_weight == nullptr) return OkStatus();
  return Run("add_weight", table_.add_weight, plugin::ToC(weight));
}

const FathomStepPlan* PluginBackend::PlanOf(const StepPlan* plan) {
  return plan == begun_ ? step_.get() : other_.Set(*plan);
}

Status PluginBackend::CheckPages(const char* what, const PageView& pages) const {
  if (pages.empty() || Holds(pages.format.encoding)) return OkStatus();
  return Unimplemented(name_ + ": has no pages with " + what + " of encoding " +
                       std::to_string(ToC(pages.format.encoding)));
}

Status PluginBackend::CheckPlan(const StepPlan& plan) const {
  FATHOM_RETURN_IF_ERROR(Fits("rows", plan.num_rows(), limits_.max_rows));
  for (const SequenceRows& rows : plan.sequences) {
    FATHOM_RETURN_IF_ERROR(
        Fits("positions", int64_t{rows.start} + rows.num_rows, limits_.max_positions));
  }
  return OkStatus();
}

Status PluginBackend::CheckHeads(int64_t heads, int64_t head_dim) const {
  FATHOM_RETURN_IF_ERROR(Fits("heads", heads, limits_.max_heads));
  return Fits("head dimension", head_dim, limits_.max_head_dim);
}

}  // namespace fathom
