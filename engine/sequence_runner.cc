#include "engine/sequence_runner.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace fathom {

CacheGeometry CacheGeometryOf(const ModelConfig& config, bool with_mtp) {
  CacheGeometry geometry = {config.compress_ratios, config.head_dim, config.rope_dim,
                            config.index_head_dim, config.window};
  if (with_mtp) {
    const std::vector<int>& mtp = config.mtp_compress_ratios;
    geometry.ratios.insert(geometry.ratios.end(), mtp.begin(), mtp.end());
    geometry.num_mtp_layers = static_cast<int>(mtp.size());
  }
  return geometry;
}

Result<std::unique_ptr<SequenceRunner>> SequenceRunner::Create(Model& model, Numerics numerics,
                                                               int64_t max_positions,
                                                               std::optional<CacheDTypes> dtypes) {
  const CacheDTypes chosen = dtypes.value_or(DefaultCacheDTypes(numerics));
  FATHOM_RETURN_IF_ERROR(CheckCacheDTypes(chosen, numerics));
  FATHOM_ASSIGN_OR_RETURN(
      std::unique_ptr<SequenceCache> cache,
      SequenceCache::Create(CacheLayout(CacheGeometryOf(model.config()), chosen), max_positions,
                            model.max_rows()));
  return std::unique_ptr<SequenceRunner>(new SequenceRunner(model, std::move(cache)));
}

SequenceRunner::SequenceRunner(Model& model, std::unique_ptr<SequenceCache> cache)
    : model_(model), cache_(std::move(cache)) {
  const auto rows = static_cast<size_t>(model.max_rows());
  positions_.reserve(rows);
  logits_rows_.reserve(rows);
}

Result<StepPlan> SequenceRunner::BeginStep(std::span<const TokenId> tokens, Logits wanted) {
  const Position start = cache_->length();
  const auto n = static_cast<int>(tokens.size());
  // Checked before the cache moves: a refused step leaves the sequence as it was.
  for (TokenId token : tokens) {
    if (token < 0 || token >= model_.config().vocab_size) {
      return InvalidArgument("token id " + std::to_string(token) + " outside the vocabulary of " +
                             std::to_string(model_.config().vocab_size));
    }
  }
  FATHOM_RETURN_IF_ERROR(cache_->BeginStep(start, start + n));
  positions_.resize(tokens.size());
  std::iota(positions_.begin(), positions_.end(), start);
  logits_rows_.clear();
  if (wanted == Logits::kLast) logits_rows_.push_back(n - 1);
  if (wanted == Logits::kAll) {
    logits_rows_.resize(tokens.size());
    std::iota(logits_rows_.begin(), logits_rows_.end(), 0);
  }
  rows_ = {0, n, start};
  StepPlan plan;
  plan.token_ids = tokens;
  plan.positions = positions_;
  plan.sequences = {&rows_, 1};
  for (size_t c = 0; c < kNumCacheClasses; ++c) {
    tables_[c] = cache_->Table(static_cast<CacheClass>(c));
    plan.tables[c] = {&tables_[c], 1};
  }
  plan.pages = cache_->pages();
  plan.logits_rows = logits_rows_;
  return plan;
}

Status SequenceRunner::Step(std::span<const TokenId> tokens, Logits wanted, std::span<float> logits,
                            ForwardObserver* observer) {
  FATHOM_ASSIGN_OR_RETURN(const StepPlan plan, BeginStep(tokens, wanted));
  return model_.Forward(
      plan,
      {logits.data(), static_cast<int64_t>(plan.logits_rows.size()), model_.config().vocab_size},
      observer);
}

Status SequenceRunner::StepLayer(int layer, std::span<const TokenId> tokens, TensorView<float> hc,
                                 ForwardObserver* observer) {
  FATHOM_ASSIGN_OR_RETURN(const StepPlan plan, BeginStep(tokens, Logits::kNone));
  return model_.ForwardLayer(layer, plan, hc, observer);
}

}  // namespace fathom
