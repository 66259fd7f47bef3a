// See unfused.h and backend/ops/compress_insert.h.
#include <cmath>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/products.cuh"
#include "backend/cuda/unfused/access.h"
#include "backend/cuda/unfused/entries.h"
#include "backend/cuda/unfused/unfused.h"

namespace fathom::cuda {
namespace {

constexpr int kPoolBlock = 128;  // so that few entries have several blocks

// First channels of the K values and scores of one item of a window, in pages or in rows of the
// step; null behind the last item.
struct Item {
  const std::byte* k;
  const std::byte* score;
};

// A block per row: a thread per four channels.
__global__ void __launch_bounds__(kBlock)
    AddApeKernel(const float* score, const float* ape, const int32_t* ape_rows, int width,
                 float* out) {
  const int64_t row = int64_t{blockIdx.x} * width;
  const int64_t ape_row = int64_t{ape_rows[blockIdx.x]} * width;
  for (int c = 4 * static_cast<int>(threadIdx.x); c < width; c += 4 * kBlock) {
    const Four a = LoadFour(score + row + c);
    const Four b = LoadFour(ape + ape_row + c);
    const float4 sum = {a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]};
    *reinterpret_cast<float4*>(out + row + c) = sum;
  }
}

// A block per row: [K | S], where the row has a place.
__global__ void __launch_bounds__(kBlock)
    StoreKernel(const float* kv, const float* score, int width, PageFormat format,
                const EntryRef* places) {
  const EntryRef place = places[blockIdx.x];
  if (place.page == nullptr) return;
  const int64_t row = int64_t{blockIdx.x} * width;
  std::byte* const out = EntryValues(format, place);
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kBlock) {
    StoreF32(out + 4 * c, kv[row + c]);
    StoreF32(out + 4 * (width + c), score[row + c]);
  }
}

// In double, rounded once: the entries that the host stores.
__device__ float ExpOnce(float x) { return static_cast<float>(exp(static_cast<double>(x))); }

// A thread per channel of an entry: softmax over the items' scores, weighted sum of their K values.
__global__ void __launch_bounds__(kPoolBlock)
    PoolKernel(const Item* items, const int32_t* sizes, int most_items, EntryRows out) {
  const auto channel = static_cast<int>(blockIdx.y * kPoolBlock + threadIdx.x);
  if (channel >= out.width) return;
  const int64_t at = int64_t{4} * channel;
  const Item* const window = items + int64_t{blockIdx.x} * most_items;
  const int size = sizes[blockIdx.x];
  float max = -INFINITY;
#pragma unroll 8
  for (int j = 0; j < size; ++j) max = fmaxf(max, LoadF32(window[j].score + at));
  float den = 0.0f;
#pragma unroll 8
  for (int j = 0; j < size; ++j) den += ExpOnce(LoadF32(window[j].score + at) - max);
  float sum = 0.0f;
#pragma unroll 8
  for (int j = 0; j < size; ++j) {
    sum += LoadF32(window[j].k + at) * (ExpOnce(LoadF32(window[j].score + at) - max) / den);
  }
  out.data[int64_t{blockIdx.x} * out.width + channel] = RoundBf16(sum);
}

class CompressInsert final : public Sequence {
 public:
  CompressInsert(CudaBackend& backend, const CompressInsertArgs& args)
      : args_(args), stream_(UnfusedAccess::StateOf(backend).stream), memory_(backend) {}

  Status Make() {
    const EntryEncoding encoding = args_.out.format.encoding;
    const auto width = static_cast<int>(args_.norm_weight.dim(0));
    row_width_ = static_cast<int>(args_.kv_rows.dim(1));
    const int64_t n = args_.kv_rows.dim(0);
    const auto rows = static_cast<size_t>(n);
    if (encoding != (args_.index_side ? EntryEncoding::kE2m1 : EntryEncoding::kE4m3Rope) ||
        width % 4 != 0 || (args_.index_side && (width & (width - 1)) != 0)) {
      return Unimplemented("unfused compress_insert: formats or sizes");
    }
    FATHOM_ASSIGN_OR_RETURN(score_, memory_.Room<float>(args_.kv_rows.size()));
    most_items_ = args_.ratio == 4 ? 8 : args_.ratio;
    std::vector<int32_t> ape_rows(rows);
    std::vector<EntryRef> stored(rows), places;
    std::vector<Item> items;
    std::vector<int32_t> sizes;
    size_t seen = 0;
    for (size_t s = 0; s < args_.plan->sequences.size(); ++s) {
      const SequenceRows& sequence = args_.plan->sequences[s];
      const BlockTable& table = args_.plan->TablesFor(args_.state_kind)[s];
      for (int i = 0; i < sequence.num_rows; ++i, ++seen) {
        const auto row = static_cast<size_t>(sequence.first_row + i);
        const Position position = sequence.start + i;
        ape_rows[row] = position % args_.ratio;
        if (HasBlock(args_.state, table, position)) {
          stored[row] = Locate(args_.state, table, position);
        }
      }
      const EndingEntries ending = EntriesEnding(sequence, args_.ratio);
      for (int j = ending.first; j < ending.first + ending.count; ++j) {
        places.push_back(Locate(args_.out, args_.plan->TablesFor(args_.out_kind)[s], j));
        sizes.push_back(AddItems(sequence, table, j, width, items));
      }
    }
    if (seen != rows) return Unimplemented("unfused compress_insert: rows of no sequence");
    FATHOM_ASSIGN_OR_RETURN(ape_rows_, memory_.Put(ape_rows));
    FATHOM_ASSIGN_OR_RETURN(stored_, memory_.Put(stored));
    FATHOM_ASSIGN_OR_RETURN(places_, memory_.Put(places));
    FATHOM_ASSIGN_OR_RETURN(items_, memory_.Put(items));
    FATHOM_ASSIGN_OR_RETURN(sizes_, memory_.Put(sizes));
    entries_.n = static_cast<int64_t>(places.size());
    entries_.width = width;
    FATHOM_ASSIGN_OR_RETURN(pooled_, memory_.Room<float>(entries_.n * width));
    FATHOM_ASSIGN_OR_RETURN(entries_.data, memory_.Room<float>(entries_.n * width));
    FATHOM_ASSIGN_OR_RETURN(records_,
                            memory_.Room<std::byte>(entries_.n * args_.out.format.entry_bytes()));
    return OkStatus();
  }

  Status Run() override {
    const auto rows = static_cast<unsigned>(args_.kv_rows.dim(0));
    const float* const score = score_;
    Launch(AddApeKernel, rows, kBlock, 0, stream_, args_.score_rows.data(), args_.ape.data(),
           ape_rows_, row_width_, score_);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: ape"));
    Launch(StoreKernel, rows, kBlock, 0, stream_, args_.kv_rows.data(), score, row_width_,
           args_.state.format, stored_);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: rows"));
    if (entries_.n == 0) return OkStatus();
    const EntryRows pooled = {pooled_, entries_.n, entries_.width};
    Launch(PoolKernel, dim3(static_cast<unsigned>(pooled.n), Blocks(pooled.width, kPoolBlock)),
           kPoolBlock, 0, stream_, items_, sizes_, most_items_, pooled);
    FATHOM_RETURN_IF_ERROR(LaunchStatus("unfused: weighted sums"));
    FATHOM_RETURN_IF_ERROR(
        NormRows(pooled_, args_.norm_weight.data(), args_.norm_eps, entries_, stream_));
    FATHOM_RETURN_IF_ERROR(RotateRows(entries_, args_.anchor_cos_sin.data(),
                                      static_cast<int>(args_.anchor_cos_sin.dim(1)), 1, stream_));
    if (args_.index_side) FATHOM_RETURN_IF_ERROR(TransformRows(entries_, stream_));
    FATHOM_RETURN_IF_ERROR(QuantiseRows(entries_, args_.out.format, records_, nullptr, stream_));
    return InsertRecords(records_, entries_.n, args_.out, places_, stream_);
  }
  [[nodiscard]] int num_kernels() const override {
    if (entries_.n == 0) return 2;
    return args_.index_side ? 8 : 7;
  }

 private:
  // Those of entry `entry`, ascending, and nothing behind them. Returns how many they are.
  int32_t AddItems(const SequenceRows& sequence, const BlockTable& table, int entry, int width,
                   std::vector<Item>& items) const {
    const int before = args_.ratio == 4 && entry > 0 ? 4 : 0;
    for (int i = 0; i < most_items_; ++i) {
      if (i >= before + args_.ratio) {
        items.push_back({});
        continue;
      }
      const Position position = FirstRowOfEntry(entry, args_.ratio) + i;
      const int64_t channel = i < before ? 0 : row_width_ - width;
      const std::byte* k = nullptr;
      const std::byte* score = nullptr;
      if (position >= sequence.start) {
        const int64_t at =
            int64_t{sequence.first_row + position - sequence.start} * row_width_ + channel;
        k = reinterpret_cast<const std::byte*>(args_.kv_rows.data() + at);
        score = reinterpret_cast<const std::byte*>(score_ + at);
      } else {
        const EntryRef place = Locate(args_.state, table, position);
        k = place.page + args_.state.format.value_bytes() * place.row + 4 * channel;
        score = k + int64_t{4} * row_width_;
      }
      items.push_back({k, score});
    }
    return before + args_.ratio;
  }

  const CompressInsertArgs args_;
  const cudaStream_t stream_;
  SequenceMemory memory_;
  int row_width_ = 0;
  int most_items_ = 0;
  const int32_t* ape_rows_ = nullptr;  // by row
  const EntryRef* stored_ = nullptr;   // by row
  const EntryRef* places_ = nullptr;   // by entry
  const Item* items_ = nullptr;        // [entries][most_items_]
  const int32_t* sizes_ = nullptr;     // by entry
  float* score_ = nullptr;             // with ape
  float* pooled_ = nullptr;
  EntryRows entries_;
  std::byte* records_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Sequence>> MakeUnfused(CudaBackend& backend,
                                              const CompressInsertArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  FATHOM_RETURN_IF_ERROR(UnfusedAccess::StateOf(backend).Enter());
  auto sequence = std::make_unique<CompressInsert>(backend, args);
  FATHOM_RETURN_IF_ERROR(sequence->Make());
  return std::unique_ptr<Sequence>(std::move(sequence));
}

}  // namespace fathom::cuda
