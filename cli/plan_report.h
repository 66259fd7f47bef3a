// What `fathom plan` computes: a model's cache and weights against an amount of memory, from the
// config alone. plan_output.h prints it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/planner.h"
#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "cli/cards.h"
#include "engine/memory_plan.h"

namespace fathom::cli {

struct PlanOptions {
  std::vector<int64_t> lengths;  // empty: a few usual ones up to the model length
  CacheDTypes dtypes;
  // Count MTP blocks where the config has some; not with a card, where they are not loaded.
  bool mtp = true;
  int64_t max_model_len = 0;           // 0: the config's
  int64_t max_num_seqs = 1;            // sequences of max_model_len to have room for
  std::optional<int64_t> cache_bytes;  // memory set aside for the cache
  std::optional<Card> card;
  double memory_share = 0.92;    // of the card; the rest is for the driver and code
  int max_batched_tokens = 512;  // of a step, on the card
  ExpertOffload expert_offload;  // from the card
};

// The formats that lengths are compared in.
inline constexpr std::array<CacheDTypes, 3> kComparedDTypes = {{
    {CacheDType::kBf16, CacheDType::kBf16},
    {CacheDType::kFp8, CacheDType::kFp8},
    {CacheDType::kFp8, CacheDType::kFp4},
}};

struct LengthPlan {
  int64_t length = 0;
  std::array<int64_t, kComparedDTypes.size()> compared{};  // entries of main layers
  int64_t v32_style = 0;
  // In the chosen formats:
  EntryBytes stored;
  ReadBytes read;
  int64_t page_bytes = 0;   // page blocks held at this length
  int64_t slab_bytes = 0;   // set aside for max_num_seqs sequences
  int64_t num_fitting = 0;  // sequences that fit into PlanReport::cache_bytes
};

// A model on a card, as the loader lays it out (engine/memory_plan.h).
struct CardPlan {
  Card card;
  int64_t usable_bytes = 0;  // share of its memory
  MemoryPlan memory;         // its cache_bytes are what is left of usable_bytes

  [[nodiscard]] int64_t device_expert_bytes() const {
    return memory.num_device_experts() * memory.weights.expert_bytes;
  }
};

struct PlanReport {
  explicit PlanReport(CachePlanner p) : planner(std::move(p)) {}

  CachePlanner planner;
  PlanOptions options;  // lengths and max_model_len filled in
  std::vector<LengthPlan> lengths;
  std::vector<PartBytes> weights;  // MTP bytes are 0 where they are not counted
  std::optional<CardPlan> card;
  // The cache's memory: as asked for and as the card has left; absent when neither is known.
  std::optional<int64_t> cache_bytes;
  int64_t max_fitting_length = 0;  // of max_num_seqs sequences in cache_bytes, up to max_model_len
};

// kInvalidArgument for lengths beyond the model's positions and formats that don't go together.
Result<PlanReport> MakePlan(const ModelConfig& config, PlanOptions options);

}  // namespace fathom::cli
