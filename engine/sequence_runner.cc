#include "engine/sequence_runner.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "base/check.h"
#include "engine/cache_sizing.h"

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
  FATHOM_ASSIGN_OR_RETURN(const CachePlanner planner, PlannerFor(model.config(), numerics, dtypes));
  if (max_positions < 1 || max_positions > std::numeric_limits<Position>::max()) {
    return InvalidArgument("cache: need 1 <= positions <= 2^31 - 1");
  }
  BlockManagerOptions options;
  options.max_positions = max_positions;
  // Repeat goes on by whole blocks.
  options.max_step_positions = std::max(model.max_rows(), kBlockPositions);
  options.prefix_caching = false;
  const int64_t slabs = planner.BytesFor(1, max_positions) / planner.slab_bytes();
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<BlockManager> manager,
                          BlockManager::Create(planner, slabs, options));
  FATHOM_ASSIGN_OR_RETURN(
      std::unique_ptr<CacheMemory> memory,
      CacheMemory::Create(planner.layout(), manager->pool(), model.backend().memory()));
  return std::unique_ptr<SequenceRunner>(
      new SequenceRunner(model, std::move(manager), std::move(memory), max_positions));
}

SequenceRunner::SequenceRunner(Model& model, std::unique_ptr<BlockManager> manager,
                               std::unique_ptr<CacheMemory> memory, int64_t max_positions)
    : model_(model),
      manager_(std::move(manager)),
      memory_(std::move(memory)),
      max_positions_(max_positions) {
  const auto rows = static_cast<size_t>(model.max_rows());
  positions_.reserve(rows);
  logits_rows_.reserve(rows);
  Clear();
}

Status SequenceRunner::Repeat(int64_t num_positions) {
  const int64_t begin = length();
  if (begin < 1 || num_positions < 1 || begin % kBlockPositions != 0 ||
      num_positions % kBlockPositions != 0 || num_positions > max_positions_ - begin) {
    return InvalidArgument("repeat: " + std::to_string(num_positions) + " positions behind " +
                           std::to_string(begin) + ", need whole blocks of " +
                           std::to_string(kBlockPositions) + " in a length of " +
                           std::to_string(max_positions_));
  }
  const CachePlanner& planner = manager_->planner();
  const int64_t period = begin / kBlockPositions;
  std::vector<BlockCopy> copies;
  // One block at a time: the windows in front of it and at its end are there together.
  for (int64_t block = period; block < period + num_positions / kBlockPositions; ++block) {
    const int64_t end = (block + 1) * kBlockPositions;
    FATHOM_CHECK(manager_->Extend(sequence_, end), "the memory was sized for the longest length");
    FATHOM_RETURN_IF_ERROR(EndCopies(memory_->CarryOut(*manager_)));
    copies.clear();
    for (int c = 0; c < kNumCacheClasses; ++c) {
      const auto cache_class = static_cast<CacheClass>(c);
      if (planner.BlocksPerSlab(cache_class) == 0) continue;
      const BlockTable table = manager_->Table(sequence_, cache_class);
      if (cache_class == CacheClass::kFull) {
        copies.push_back({cache_class, table.blocks[block % period], table.blocks[block]});
        continue;
      }
      const int64_t per_block = CacheLayout::PositionsPerBlock(cache_class);
      // Wider windows reach into blocks that are there already.
      const int64_t first =
          std::max(planner.layout().LiveBegin(cache_class, end), end - kBlockPositions);
      for (int64_t b = first / per_block; b * per_block < end; ++b) {
        const int64_t from = b - kBlockPositions / per_block;
        copies.push_back(
            {cache_class, table.blocks[from - table.first], table.blocks[b - table.first]});
      }
    }
    FATHOM_RETURN_IF_ERROR(EndCopies(memory_->Copy(copies)));
    manager_->Commit(sequence_, {});
  }
  return OkStatus();
}

void SequenceRunner::Clear() {
  if (sequence_ >= 0) manager_->Release(sequence_);
  sequence_ = manager_->Admit({}, nullptr, max_positions_).value();
}

Result<StepPlan> SequenceRunner::BeginStep(std::span<const TokenId> tokens, Logits wanted) {
  const Position start = length();
  const auto n = static_cast<int>(tokens.size());
  if (n < 1 || n > model_.max_rows()) {
    return InvalidArgument("a step of " + std::to_string(n) + " tokens, room for 1 to " +
                           std::to_string(model_.max_rows()));
  }
  if (start + int64_t{n} > max_positions_) {
    return OutOfMemory("cache: position " + std::to_string(start + int64_t{n}) +
                       " is beyond the model length of " + std::to_string(max_positions_));
  }
  // Checked before the cache moves: a refused step leaves the sequence as it was.
  for (TokenId token : tokens) {
    if (token < 0 || token >= model_.config().vocab_size) {
      return InvalidArgument("token id " + std::to_string(token) + " outside the vocabulary of " +
                             std::to_string(model_.config().vocab_size));
    }
  }
  FATHOM_CHECK(manager_->Extend(sequence_, start + n),
               "the memory was sized for the longest length");
  FATHOM_RETURN_IF_ERROR(EndCopies(memory_->CarryOut(*manager_)));
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
    tables_[c] = manager_->Table(sequence_, static_cast<CacheClass>(c));
    plan.tables[c] = {&tables_[c], 1};
  }
  plan.pages = memory_->pages();
  plan.logits_rows = logits_rows_;
  return plan;
}

Status SequenceRunner::Step(std::span<const TokenId> tokens, Logits wanted, std::span<float> logits,
                            ForwardObserver* observer) {
  FATHOM_ASSIGN_OR_RETURN(const StepPlan plan, BeginStep(tokens, wanted));
  return EndStep(model_.Forward(
      plan,
      {logits.data(), static_cast<int64_t>(plan.logits_rows.size()), model_.config().vocab_size},
      observer));
}

Status SequenceRunner::EndStep(Status status) {
  if (status.ok()) {
    manager_->Commit(sequence_, {});
  } else {
    manager_->Truncate(sequence_, length());
  }
  return status;
}

Status SequenceRunner::EndCopies(Status status) {
  if (!status.ok()) manager_->Truncate(sequence_, length());
  return status;
}

Status SequenceRunner::StepLayer(int layer, std::span<const TokenId> tokens, TensorView<float> hc,
                                 ForwardObserver* observer) {
  FATHOM_ASSIGN_OR_RETURN(const StepPlan plan, BeginStep(tokens, Logits::kNone));
  return EndStep(model_.ForwardLayer(layer, plan, hc, observer));
}

}  // namespace fathom
