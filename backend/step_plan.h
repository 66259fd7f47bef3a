// StepPlan: which tokens one forward pass computes, and where their cache entries live. Data only.
//
// Rows are the step's tokens, flattened; the rows of one sequence are consecutive and so are their
// positions. Everything is borrowed from the planner and constant during the step.
//
// What an operation needs of this step's own rows (window KV, compressor rows) it takes from the
// step's activations; pages of sliding classes are read below `start` only. So their tables need
// blocks for two stretches: positions below `start` that the step's windows reach, and rows that
// somebody will read after the step. Rows of the step without a block are not stored. Pages of the
// full class are always written and read.
#pragma once

#include <array>
#include <span>

#include "backend/page_format.h"
#include "base/types.h"

namespace fathom {

// One sequence's share of a step.
struct SequenceRows {
  int first_row = 0;
  int num_rows = 0;
  Position start = 0;  // position of first_row; positions below it are in the cache already
};

// A row whose token was sampled by an earlier step, and which one of those it was.
struct TokenSource {
  int32_t row = 0;
  int32_t sampled = 0;
};

using LayerPages = std::array<PageView, kNumCacheKinds>;

struct StepPlan {
  std::span<const TokenId> token_ids;   // [rows]
  std::span<const Position> positions;  // [rows]
  std::span<const SequenceRows> sequences;
  // Block tables of a class, one per sequence.
  std::array<std::span<const BlockTable>, kNumCacheClasses> tables;
  // Pages of every kind that a layer has, by layer; a kind that it lacks is empty.
  std::span<const LayerPages> pages;
  // Rows whose logits are wanted, ascending.
  std::span<const int> logits_rows;
  // Rows whose ids are among those that the step launched before sampled (Model::Launch), where the
  // host need not know them yet; token_ids have any of the vocabulary there.
  std::span<const TokenSource> token_sources;
  // Set by the model, by ratio 4 and 128: the position of the first token of each entry that ends
  // in the step, in CompressInsert's order. More of them stand for none; so launches can be the
  // same in steps that end fewer.
  std::array<std::span<const Position>, 2> anchors;
  // At least as long as any of the step's sequences will be behind it, or 0: what launches are made
  // for, where they are recorded to be done again in other steps.
  Position max_length = 0;

  [[nodiscard]] int num_rows() const { return static_cast<int>(token_ids.size()); }
  [[nodiscard]] const PageView& Pages(int layer, CacheKind kind) const {
    return pages[static_cast<size_t>(layer)][static_cast<size_t>(kind)];
  }
  [[nodiscard]] std::span<const BlockTable> TablesFor(CacheKind kind) const {
    return tables[static_cast<size_t>(ClassOf(kind))];
  }
};

// Where entries of a ratio have their place in StepPlan::anchors.
constexpr size_t AnchorsOf(int ratio) { return ratio == 4 ? 0 : 1; }

// Entries of ratio `ratio` that a query at `position` may see: those whose last token is at or
// before it.
constexpr int VisibleEntries(Position position, int ratio) { return (position + 1) / ratio; }

}  // namespace fathom
