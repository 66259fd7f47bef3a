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

namespace fathom::cli {

struct PlanOptions {
  std::vector<int64_t> lengths;  // empty: a few usual ones up to the model length
  CacheDTypes dtypes;
  bool mtp = true;                     // count MTP blocks where the config has some
  int64_t max_model_len = 0;           // 0: the config's
  int64_t max_num_seqs = 1;            // sequences of max_model_len to have room for
  std::optional<int64_t> cache_bytes;  // memory set aside for the cache
  std::optional<Card> card;
  double memory_share = 0.92;  // of the card; the rest is for activations and the driver
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

// Weights on a card. Experts leave it evenly: as many of each layer.
struct CardPlan {
  Card card;
  int64_t usable_bytes = 0;     // share of its memory
  int64_t fixed_bytes = 0;      // weights that stay: all but routed experts
  int64_t expert_bytes = 0;     // one routed expert of every layer
  int num_experts_on_card = 0;  // of each layer
  int64_t host_bytes = 0;       // routed experts that leave the card
  int64_t left_bytes = 0;       // of usable_bytes, below 0 when the fixed weights alone don't fit
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
