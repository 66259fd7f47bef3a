// See backend/ops/compress_insert.h for the contract.
#include "backend/cpu/scratch.h"
#include "backend/page_codec.h"
#include "base/formats.h"

namespace fathom {
namespace {

constexpr int64_t kChannels = 64;  // whose scores are in memory together

const std::byte* BytesOf(const float* values) { return reinterpret_cast<const std::byte*>(values); }

}  // namespace

Status CpuBackend::DoCompressInsert(const CompressInsertArgs& args) {
  const int64_t coff_width = args.kv_rows.dim(1);
  const int64_t width = args.norm_weight.dim(0);
  const PageFormat& state = args.state.format;
  FATHOM_RETURN_IF_ERROR(Fits("compress_insert: width", width, scratch_->limits.max_head_dim));
  if (state.encoding != EntryEncoding::kF32) {
    return InvalidArgument("compress_insert: compressor rows must be stored as fp32");
  }
  if (args.index_side && ((width & (width - 1)) != 0 || width > cpu::kMaxHadamard)) {
    return InvalidArgument("compress_insert: index keys of " + std::to_string(width) +
                           " channels have no Hadamard rotation");
  }
  const std::span<const BlockTable> state_tables = args.plan->TablesFor(args.state_kind);
  const std::span<const BlockTable> out_tables = args.plan->TablesFor(args.out_kind);
  int64_t first_anchor = 0;
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    const auto stored_row = [&](int64_t position) {
      const EntryRef entry = Locate(args.state, state_tables[s], position);
      return entry.page + state.value_bytes() * entry.row;
    };
    // Channels from `half` on of a position's row: of this step, or of an earlier one from its
    // page.
    const auto item = [&](int64_t position, int64_t half) -> cpu::PoolItem {
      if (position >= rows.start) {
        const int64_t i = rows.first_row + (position - rows.start);
        return {BytesOf(args.kv_rows.row(i).data() + half),
                BytesOf(args.score_rows.row(i).data() + half),
                args.ape.row(position % args.ratio).data() + half};
      }
      const std::byte* k = stored_row(position) + half * static_cast<int64_t>(sizeof(float));
      return {k, k + coff_width * static_cast<int64_t>(sizeof(float))};
    };
    ForEach(rows.num_rows, 4 * coff_width, [&](int64_t i, int) {
      const int64_t position = rows.start + i;
      if (!HasBlock(args.state, state_tables[s], position)) return;
      const float* kv = args.kv_rows.row(rows.first_row + i).data();
      const float* score = args.score_rows.row(rows.first_row + i).data();
      const float* ape = args.ape.row(position % args.ratio).data();
      std::byte* out = stored_row(position);
      std::memcpy(out, kv, static_cast<size_t>(coff_width) * sizeof(float));
      out += coff_width * static_cast<int64_t>(sizeof(float));
      float sum[kChannels];
      for (int64_t begin = 0; begin < coff_width; begin += kChannels) {
        const int64_t count = std::min(kChannels, coff_width - begin);
        for (int64_t c = 0; c < count; ++c) sum[c] = score[begin + c] + ape[begin + c];
        std::memcpy(out + begin * static_cast<int64_t>(sizeof(float)), sum,
                    static_cast<size_t>(count) * sizeof(float));
      }
    });

    const EndingEntries ending = EntriesEnding(rows, args.ratio);
    // An exponential costs about eight multiplications.
    ForEach(ending.count, 16 * width * args.ratio * (args.ratio == 4 ? 2 : 1),
            [&](int64_t e, int thread) {
              const int64_t j = ending.first + e;
              cpu::PoolItem items[cpu::kMaxPoolItems];
              size_t num_items = 0;
              // Entry 0 has no window before it; leaving those items out is the same as scores of
              // -inf.
              if (args.ratio == 4 && j > 0) {
                for (int64_t u = -4; u < 0; ++u) items[num_items++] = item(4 * j + u, 0);
              }
              for (int64_t u = 0; u < args.ratio; ++u) {
                items[num_items++] = item(args.ratio * j + u, coff_width - width);
              }
              const std::span<float> entry(scratch_->thread_tile.part(thread),
                                           static_cast<size_t>(width));
              cpu::PoolItems({items, num_items}, entry);
              if (official()) cpu::RoundBf16(entry, entry.data());
              cpu::ScaleRow(entry, args.norm_weight.data(), cpu::InverseRms(entry, args.norm_eps),
                            official(), entry.data());
              cpu::RopeRow(entry, args.anchor_cos_sin.row(first_anchor + e), 1.0f, official());
              if (args.index_side) cpu::HadamardRow(entry, official());
              if (!StoreEntry(args.out.format, Locate(args.out, out_tables[s], j), entry)) {
                CountInexactEntry();
              }
            });
    first_anchor += ending.count;
  }
  return OkStatus();
}

}  // namespace fathom
