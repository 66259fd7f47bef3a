#include "cli/plan_report.h"

#include <algorithm>
#include <utility>

#include "cli/numbers.h"
#include "engine/cache_sizing.h"
#include "engine/sequence_runner.h"

namespace fathom::cli {
namespace {

// Lengths of published tables; 384K is what the greatest thinking effort asks for.
constexpr int64_t kUsualLengths[] = {4096, 65536, 393216, 1048576};

Status Complete(const ModelConfig& config, PlanOptions& options) {
  const int64_t most = config.max_position_embeddings;
  if (options.max_model_len == 0) options.max_model_len = most;
  if (options.max_model_len < 1 || options.max_model_len > most) {
    return InvalidArgument("--max-model-len " + WithCommas(options.max_model_len) +
                           ": the model has positions for 1 to " + WithCommas(most));
  }
  if (options.lengths.empty()) {
    for (const int64_t length : kUsualLengths) {
      if (length < options.max_model_len) options.lengths.push_back(length);
    }
    options.lengths.push_back(options.max_model_len);
  }
  for (const int64_t length : options.lengths) {
    if (length < 1 || length > most) {
      return InvalidArgument("a sequence of " + WithCommas(length) +
                             " tokens: the model has positions for 1 to " + WithCommas(most));
    }
  }
  const bool exact = options.dtypes.attention == CacheDType::kF32;
  return CheckCacheDTypes(options.dtypes, exact ? Numerics::kExact : Numerics::kOfficial);
}

CardPlan PlanCard(const ModelConfig& config, const PlanReport& report) {
  const PlanOptions& options = report.options;
  CardPlan plan;
  plan.card = *options.card;
  MemoryBudget budget;
  budget.device = {std::string(plan.card.title), plan.card.memory_bytes, plan.card.memory_bytes};
  CacheBudget share;
  share.device_share = options.memory_share;
  plan.usable_bytes = UsableDeviceBytes(share, budget.device);
  budget.usable_bytes = budget.limit_bytes = plan.usable_bytes;
  budget.has_pinned_memory = true;
  MemoryDemand demand;
  demand.backend = "cuda";
  demand.max_rows = options.max_batched_tokens;
  demand.max_positions = options.max_model_len;
  // The cache comes first: experts can lie elsewhere, entries cannot.
  demand.cache_bytes = options.cache_bytes.value_or(
      report.planner.BytesFor(options.max_num_seqs, options.max_model_len));
  demand.offload = options.expert_offload;
  plan.memory = LayOutMemory(config, demand, budget);
  return plan;
}

LengthPlan PlanLength(const ModelConfig& config, const PlanReport& report, int64_t length) {
  const CachePlanner& planner = report.planner;
  LengthPlan plan;
  plan.length = length;
  for (size_t i = 0; i < kComparedDTypes.size(); ++i) {
    const CacheLayout layout(planner.layout().geometry(), kComparedDTypes[i]);
    plan.compared[i] = EntryBytesAt(layout, length).entries();
  }
  plan.v32_style = V32StyleBytes(config.num_layers, length);
  plan.stored = EntryBytesAt(planner.layout(), length);
  plan.read = ReadBytesPerToken(planner.layout(), length, config.index_topk);
  plan.page_bytes = planner.BlockBytes(planner.BlocksAt(length));
  plan.slab_bytes = planner.BytesFor(report.options.max_num_seqs, length);
  if (report.cache_bytes) plan.num_fitting = planner.MaxSequences(length, *report.cache_bytes);
  return plan;
}

}  // namespace

Result<PlanReport> MakePlan(const ModelConfig& config, PlanOptions options) {
  FATHOM_RETURN_IF_ERROR(Complete(config, options));
  if (options.card) options.mtp = false;
  PlanReport report{
      CachePlanner(CacheLayout(CacheGeometryOf(config, options.mtp), options.dtypes))};
  report.weights = InventoryOf(config);
  if (!options.mtp) {
    for (PartBytes& part : report.weights) part.mtp_bytes = 0;
  }
  report.options = std::move(options);
  report.cache_bytes = report.options.cache_bytes;
  if (report.options.card) {
    report.card = PlanCard(config, report);
    const int64_t left = std::max<int64_t>(report.card->memory.cache_bytes, 0);
    report.cache_bytes = std::min(report.options.cache_bytes.value_or(left), left);
  }
  if (report.cache_bytes) {
    report.max_fitting_length = report.planner.MaxLength(
        report.options.max_num_seqs, *report.cache_bytes, report.options.max_model_len);
  }
  for (const int64_t length : report.options.lengths) {
    report.lengths.push_back(PlanLength(config, report, length));
  }
  return report;
}

}  // namespace fathom::cli
