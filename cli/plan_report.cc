#include "cli/plan_report.h"

#include <algorithm>
#include <utility>

#include "cli/numbers.h"
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

CardPlan PlanCard(const PlanReport& report, int num_experts) {
  const PlanOptions& options = report.options;
  CardPlan plan;
  plan.card = *options.card;
  plan.usable_bytes =
      static_cast<int64_t>(static_cast<double>(plan.card.memory_bytes) * options.memory_share);
  int64_t routed = 0;
  for (const PartBytes& part : report.weights) {
    const auto bytes = static_cast<int64_t>(part.main_bytes + part.mtp_bytes);
    (part.part == Part::kRoutedExperts ? routed : plan.fixed_bytes) += bytes;
  }
  plan.expert_bytes = routed / num_experts;
  // The cache comes first: experts can be computed elsewhere, entries cannot.
  const int64_t cache = options.cache_bytes.value_or(
      report.planner.BytesFor(options.max_num_seqs, options.max_model_len));
  const int64_t room = plan.usable_bytes - plan.fixed_bytes - cache;
  // Geometries too narrow for an fp4 group have experts without a byte.
  plan.num_experts_on_card =
      plan.expert_bytes == 0
          ? num_experts
          : static_cast<int>(std::clamp<int64_t>(room / plan.expert_bytes, 0, num_experts));
  plan.host_bytes = (num_experts - plan.num_experts_on_card) * plan.expert_bytes;
  plan.left_bytes =
      plan.usable_bytes - plan.fixed_bytes - plan.num_experts_on_card * plan.expert_bytes;
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
  PlanReport report{
      CachePlanner(CacheLayout(CacheGeometryOf(config, options.mtp), options.dtypes))};
  report.weights = InventoryOf(config);
  if (!options.mtp) {
    for (PartBytes& part : report.weights) part.mtp_bytes = 0;
  }
  report.options = std::move(options);
  report.cache_bytes = report.options.cache_bytes;
  if (report.options.card) {
    report.card = PlanCard(report, config.num_experts);
    const int64_t left = std::max<int64_t>(report.card->left_bytes, 0);
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
