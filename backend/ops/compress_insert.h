// Turns every compression window that ends in this step into one cache entry, and stores the
// compressor rows that later steps will read.
//
// Row of token t, fp32: [K_t | S_t + ape[t mod ratio]]. It is stored at position t of the state
// pages if the state table has a block there. Windows take rows of this step (t >= the sequence's
// start) from kv_rows and score_rows, the same bits as a stored row, and earlier ones from the
// pages.
// Entry j, per channel, fp32: softmax over the window's scores (exponentials in double, rounded
// once), weighted sum of its K values.
//   ratio 128: tokens 128j .. 128j + 127.
//   ratio 4:   rows are two halves of `width` channels; the first half belongs to the entry of the
//              following window, the second to the own one. Entry j pools the first halves of
//              tokens 4j-4 .. 4j-1 and the second halves of 4j .. 4j+3. Entry 0 has no previous
//              window: its first four items count as score -inf.
// The sum is rounded to bf16, then RMSNorm, RoPE on the last rope_dim channels at position ratio *
// j, then the page's format: main entries e4m3 + bf16 rope; index keys take the Hadamard rotation
// (Sylvester order, width^-0.5, one bf16 rounding) and e2m1. Windows that do not end in this step
// are left alone. Writing a position again gives the same bytes. Source: official inference code,
// model.py: Compressor.forward.
// kInvalidArgument, with nothing written, when an earlier row of a window that ends or an entry to
// be written has no block.
#pragma once

#include "backend/page_format.h"
#include "backend/step_plan.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

struct CompressInsertArgs {
  TensorView<const float> kv_rows;      // [n, coff * width]; coff = 2 when ratio is 4, else 1
  TensorView<const float> score_rows;   // same shape, without ape
  TensorView<const float> ape;          // [ratio, coff * width]
  TensorView<const float> norm_weight;  // [width]
  // One row per entry that ends in this step, sequences in order, entries ascending (see
  // EntriesEnding): the rotation at position ratio * entry. Where the plan has more anchors, as
  // many rows as it has; those behind are not read.
  TensorView<const float> anchor_cos_sin;  // [entries, rope_dim / 2, 2]
  float norm_eps = 0.0f;
  int ratio = 0;            // 4 or 128
  bool index_side = false;  // entries are index keys
  const StepPlan* plan = nullptr;
  PageView state;  // read below the step's rows, written where the table has blocks
  PageView out;    // written, one entry per window
  CacheKind state_kind = CacheKind::kC4State;
  CacheKind out_kind = CacheKind::kC4Kv;
};

// Entries whose last token is among the sequence's rows of this step: [first, first + count).
struct EndingEntries {
  int first = 0;
  int count = 0;
};
constexpr EndingEntries EntriesEnding(const SequenceRows& rows, int ratio) {
  const int before = rows.start / ratio;
  return {before, (rows.start + rows.num_rows) / ratio - before};
}

// Position of the first row that entry `entry` pools.
constexpr Position FirstRowOfEntry(int entry, int ratio) {
  return ratio == 4 && entry > 0 ? 4 * (entry - 1) : ratio * entry;
}

Status Check(const CompressInsertArgs& args);

}  // namespace fathom
