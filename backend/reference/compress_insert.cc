// See backend/ops/compress_insert.h for the contract.
#include <cmath>
#include <limits>
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/page_codec.h"
#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

// One item of a compression window, per channel: where its K value and its score stand in a state
// row.
struct Item {
  std::vector<float> row;  // [K | S], 2 * coff * width
  size_t half = 0;         // first channel of the half that this window uses
};

// In double, rounded once, so that other backends can store the same entries.
float Exp(float x) { return static_cast<float>(std::exp(static_cast<double>(x))); }

// Softmax over the items' scores and weighted sum of their K values, each channel on its own.
void Pool(std::span<const Item> items, size_t coff_width, std::span<float> out) {
  for (size_t c = 0; c < out.size(); ++c) {
    float max = -std::numeric_limits<float>::infinity();
    for (const Item& item : items) max = std::max(max, item.row[coff_width + item.half + c]);
    float den = 0.0f;
    for (const Item& item : items) den += Exp(item.row[coff_width + item.half + c] - max);
    float sum = 0.0f;
    for (const Item& item : items) {
      const float p = Exp(item.row[coff_width + item.half + c] - max) / den;
      sum += item.row[item.half + c] * p;
    }
    out[c] = sum;
  }
}

}  // namespace

Status ReferenceBackend::DoCompressInsert(const CompressInsertArgs& args) {
  const auto coff_width = static_cast<size_t>(args.kv_rows.dim(1));
  const auto width = static_cast<size_t>(args.norm_weight.dim(0));
  const std::span<const BlockTable> state_tables = args.plan->TablesFor(args.state_kind);
  const std::span<const BlockTable> out_tables = args.plan->TablesFor(args.out_kind);
  std::vector<float> row(2 * coff_width);
  std::vector<float> entry(width);
  int64_t anchor = 0;
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    // The row of a position of this step: [K | S + ape].
    const auto step_row = [&](Position position, std::span<float> out) {
      const int64_t i = rows.first_row + (position - rows.start);
      const std::span<const float> kv = args.kv_rows.row(i);
      const std::span<const float> score = args.score_rows.row(i);
      const std::span<const float> ape = args.ape.row(position % args.ratio);
      for (size_t c = 0; c < coff_width; ++c) {
        out[c] = kv[c];
        out[coff_width + c] = score[c] + ape[c];
      }
    };
    for (Position position = rows.start; position < rows.start + rows.num_rows; ++position) {
      if (!HasBlock(args.state, state_tables[s], position)) continue;
      step_row(position, row);
      StoreEntry(args.state.format, Locate(args.state, state_tables[s], position), row);
    }

    const EndingEntries ending = EntriesEnding(rows, args.ratio);
    for (int j = ending.first; j < ending.first + ending.count; ++j, ++anchor) {
      std::vector<Item> items;
      // Ratio 4: the window before contributes its first half. Entry 0 has none; leaving its items
      // out is the same as scores of -inf.
      if (args.ratio == 4 && j > 0) {
        for (int u = 0; u < 4; ++u) items.push_back({row, 0});
      }
      for (int u = 0; u < args.ratio; ++u) items.push_back({row, coff_width - width});
      Position position = FirstRowOfEntry(j, args.ratio);
      for (Item& item : items) {
        if (position < rows.start) {
          LoadEntry(args.state.format, Locate(args.state, state_tables[s], position), item.row);
        } else {
          step_row(position, item.row);
        }
        ++position;
      }
      Pool(items, coff_width, entry);
      for (float& v : entry) v = reference::Bf16(numerics(), v);
      reference::RmsNormRow(numerics(), entry, args.norm_weight.elements(), args.norm_eps, entry);
      reference::RopeRow(numerics(), entry, args.anchor_cos_sin.row(anchor), 1.0f);
      if (args.index_side) reference::HadamardRow(numerics(), entry);
      if (!StoreEntry(args.out.format, Locate(args.out, out_tables[s], j), entry)) {
        CountInexactEntry();
      }
    }
  }
  return OkStatus();
}

}  // namespace fathom
