#include "backend/cuda/unfused/entries.h"

#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/rows.cuh"

namespace fathom::cuda {
namespace {

// A block per row.
__global__ void __launch_bounds__(kBlock)
    NormKernel(const float* x, const float* weight, float eps, EntryRows out) {
  __shared__ double sums[kWarps];
  const int64_t at = int64_t{blockIdx.x} * out.width;
  const float inverse = InverseRms(BlockSum(SquaresOf(x + at, out.width), sums), out.width, eps);
  for (int c = static_cast<int>(threadIdx.x); c < out.width; c += kBlock) {
    out.data[at + c] = RoundBf16(weight[c] * (x[at + c] * inverse));
  }
}

// A thread per pair.
__global__ void __launch_bounds__(kBlock)
    RotateKernel(EntryRows rows, const float* cos_sin, unsigned pairs, unsigned share) {
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  const unsigned row = i / pairs;
  if (row >= rows.n) return;
  const unsigned pair = i % pairs;
  RotatePair(rows.data + int64_t{row + 1} * rows.width - 2 * int64_t{pairs - pair},
             cos_sin + 2 * int64_t{row / share * pairs + pair}, 1.0f);
}

// A block per row.
__global__ void __launch_bounds__(kBlock) TransformKernel(EntryRows rows) {
  auto* const work = SharedMemory<double>();  // [width], then as many floats
  auto* const values = reinterpret_cast<float*>(work + rows.width);
  float* const row = rows.data + int64_t{blockIdx.x} * rows.width;
  for (int c = static_cast<int>(threadIdx.x); c < rows.width; c += kBlock) values[c] = row[c];
  Hadamard(values, work, rows.width);
  for (int c = static_cast<int>(threadIdx.x); c < rows.width; c += kBlock) row[c] = values[c];
}

// A warp per group of 64 codes, and one per row for the rotated channels and the scales' padding.
__global__ void __launch_bounds__(kBlock)
    QuantiseKvKernel(EntryRows rows, PageFormat format, std::byte* records, float* values) {
  const int nope = format.dim - format.rope_dim;
  const int groups = nope / kE4m3Group;
  const unsigned i = blockIdx.x * kWarps + static_cast<unsigned>(WarpIndex());
  const unsigned row = i / static_cast<unsigned>(groups + 1);
  if (row >= rows.n) return;
  const auto group = static_cast<int>(i % static_cast<unsigned>(groups + 1));
  const float* const x = rows.data + int64_t{row} * rows.width;
  float* const decoded = values == nullptr ? nullptr : values + int64_t{row} * rows.width;
  std::byte* const out = records + int64_t{row} * format.entry_bytes();
  auto* const scales = reinterpret_cast<uint8_t*>(out + format.value_bytes());
  if (group == groups) {
    for (int c = nope + Lane(); c < format.dim; c += kWarp) {
      StoreU16(out + nope + 2 * (c - nope), ToBf16(x[c]));
      if (decoded != nullptr) decoded[c] = RoundBf16(x[c]);
    }
    for (int g = groups + Lane(); g < format.scale_bytes(); g += kWarp) scales[g] = 0;
    return;
  }
  const int e = E4m3Exponent(GroupAmax(x + group * kE4m3Group, kE4m3Group));
  if (Lane() == 0) scales[group] = ScaleByte(e);
  for (int c = group * kE4m3Group + Lane(); c < (group + 1) * kE4m3Group; c += kWarp) {
    const uint8_t code = ToE4m3(x[c] * PowerOfMinus(e));
    out[c] = static_cast<std::byte>(code);
    if (decoded != nullptr) decoded[c] = FromE4m3(code) * FromUe8m0(ScaleByte(e));
  }
}

// A warp per group of 32.
__global__ void __launch_bounds__(kBlock)
    QuantiseIndexKernel(EntryRows rows, PageFormat format, std::byte* records) {
  const auto groups = static_cast<unsigned>(rows.width / kE2m1Group);
  const unsigned i = blockIdx.x * kWarps + static_cast<unsigned>(WarpIndex());
  const unsigned row = i / groups;
  if (row >= rows.n) return;
  const auto group = static_cast<int>(i % groups);
  const int lane = Lane();
  const float value = rows.data[int64_t{row} * rows.width + group * kE2m1Group + lane];
  const int e = E2m1Exponent(WarpMax(fabsf(value)));
  const unsigned code = ToE2m1(value * PowerOfMinus(e));
  const unsigned next = __shfl_down_sync(kAllLanes, code, 1);
  std::byte* const out = records + int64_t{row} * format.entry_bytes();
  if (lane % 2 == 0) {
    out[(group * kE2m1Group + lane) / 2] = static_cast<std::byte>(code | next << 4);
  }
  if (lane == 0) out[format.value_bytes() + group] = static_cast<std::byte>(ScaleByte(e));
}

// A thread per word of a record.
template <typename Word>
__global__ void __launch_bounds__(kBlock)
    InsertKernel(const std::byte* records, int64_t n, PageFormat format, const EntryRef* places) {
  constexpr int64_t kBytes = sizeof(Word);
  const auto words = static_cast<unsigned>(format.entry_bytes() / kBytes);
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  const unsigned row = i / words;
  if (row >= n) return;
  const EntryRef place = places[row];
  if (place.page == nullptr) return;
  const int64_t at = i % words * kBytes;
  std::byte* const to =
      at < format.value_bytes()
          ? EntryValues(format, place) + at
          : reinterpret_cast<std::byte*>(EntryScales(format, place)) + at - format.value_bytes();
  *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(records + int64_t{i} * kBytes);
}

}  // namespace

Result<std::vector<EntryRef>> WindowPlaces(const QNormRopeKvInsertArgs& args) {
  std::vector<EntryRef> places(static_cast<size_t>(args.q.dim(0)));
  size_t seen = 0;
  for (size_t s = 0; s < args.plan->sequences.size(); ++s) {
    const SequenceRows& rows = args.plan->sequences[s];
    const BlockTable& table = args.plan->TablesFor(CacheKind::kSwaKv)[s];
    for (int i = 0; i < rows.num_rows; ++i, ++seen) {
      const Position position = rows.start + i;
      if (!HasBlock(args.swa, table, position)) continue;
      places[static_cast<size_t>(rows.first_row + i)] = Locate(args.swa, table, position);
    }
  }
  const auto lies_on = [](const float* p, size_t bytes) {
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
  };
  if (args.swa.format.encoding != EntryEncoding::kE4m3Rope || args.q.dim(2) % 4 != 0 ||
      seen != places.size() || !lies_on(args.q.data(), sizeof(float4)) ||
      !lies_on(args.cos_sin.data(), sizeof(float2))) {
    return Unimplemented("unfused q_norm_rope_kv_insert: formats, sizes, rows or alignment");
  }
  return places;
}

Status NormRows(const float* x, const float* weight, float eps, const EntryRows& out,
                cudaStream_t stream) {
  Launch(NormKernel, static_cast<unsigned>(out.n), kBlock, 0, stream, x, weight, eps, out);
  return LaunchStatus("unfused: norm");
}

Status RotateRows(const EntryRows& rows, const float* cos_sin, int pairs, int share,
                  cudaStream_t stream) {
  if (pairs == 0) return OkStatus();
  Launch(RotateKernel, Blocks(rows.n * pairs, kBlock), kBlock, 0, stream, rows, cos_sin,
         static_cast<unsigned>(pairs), static_cast<unsigned>(share));
  return LaunchStatus("unfused: rotation");
}

Status TransformRows(const EntryRows& rows, cudaStream_t stream) {
  const size_t bytes = static_cast<size_t>(rows.width) * (sizeof(double) + sizeof(float));
  Launch(TransformKernel, static_cast<unsigned>(rows.n), kBlock, bytes, stream, rows);
  return LaunchStatus("unfused: Hadamard transform");
}

Status QuantiseRows(const EntryRows& rows, const PageFormat& format, std::byte* records,
                    float* values, cudaStream_t stream) {
  if (format.encoding == EntryEncoding::kE2m1) {
    const int64_t warps = rows.n * (rows.width / kE2m1Group);
    Launch(QuantiseIndexKernel, Blocks(warps, kWarps), kBlock, 0, stream, rows, format, records);
  } else {
    const int64_t warps = rows.n * ((format.dim - format.rope_dim) / kE4m3Group + 1);
    Launch(QuantiseKvKernel, Blocks(warps, kWarps), kBlock, 0, stream, rows, format, records,
           values);
  }
  return LaunchStatus("unfused: codes");
}

Status InsertRecords(const std::byte* records, int64_t n, const PageView& pages,
                     const EntryRef* places, cudaStream_t stream) {
  const PageFormat& f = pages.format;
  const int64_t bytes = f.entry_bytes();
  const auto whole = [](int64_t value) { return value % 4 == 0; };
  if (whole(f.value_bytes()) && whole(f.scale_bytes()) && whole(pages.block_stride) &&
      whole(static_cast<int64_t>(reinterpret_cast<uintptr_t>(pages.base)))) {
    Launch(InsertKernel<uint32_t>, Blocks(n * bytes / 4, kBlock), kBlock, 0, stream, records, n, f,
           places);
  } else {
    Launch(InsertKernel<uint8_t>, Blocks(n * bytes, kBlock), kBlock, 0, stream, records, n, f,
           places);
  }
  return LaunchStatus("unfused: insertion");
}

}  // namespace fathom::cuda
