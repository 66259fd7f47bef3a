// Attention for heads of 512 channels, on the matrix unit.
//
// A block per 16 heads of a row and per split of its keys, 64 keys at a time. Warp w has the
// channels 64 w .. 64 w + 63, which are one scale group of an fp8 entry (or its rotated channels):
// it decodes its part of the keys to bf16, multiplies it with its part of the queries, and after
// the softmax the probabilities with its part of the values. So keys are decoded once, and no warp
// waits for another one's.
//
// Scores are the warps' parts added in ascending order, in fp32. Probabilities stay fp32: three
// bf16 parts of each are multiplied, whose sum is the value itself. Where splits and tiles begin
// depends on the list alone; so does what comes of them.
#include <algorithm>
#include <cmath>

#include "backend/cuda/attention.cuh"
#include "backend/cuda/formats.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/launch.cuh"

namespace fathom::cuda {
namespace {

constexpr int kDim = kTileHeadDim;
constexpr int kTileHeads = 16;
constexpr int kTileKeys = 64;
constexpr int kPart = kDim / kWarps;  // channels of a warp
constexpr int kPartSteps = kPart / 16;
constexpr int kKeyTiles = kTileKeys / 8;
constexpr int kParts = 3;  // of a probability
static_assert(kPart == 64 && kSplitKeys % kTileKeys == 0);

// Rows of shared memory are padded so that eight of them begin in different banks.
constexpr int kKeyRow = kDim + 8;
constexpr int kScoreRow = kTileKeys + 8;
constexpr int kProbabilityRow = kTileKeys + 8;

// Where a key's values are: bf16, or e4m3 with scales.
struct KeyPlace {
  const std::byte* values;
  const uint8_t* scales;  // null: bf16
};

struct Shared {
  uint16_t keys[kTileKeys][kKeyRow];
  float scores[kWarps][kTileHeads][kScoreRow];
  uint16_t probabilities[kParts][kTileHeads][kProbabilityRow];
  KeyPlace places[kSplitKeys];
  float shrink[kTileHeads];
  float max[kTileHeads];
  float den[kTileHeads];
};

__device__ inline uint32_t PackPair(float first, float second) {
  return ToBf16(first) | static_cast<uint32_t>(ToBf16(second)) << 16;
}

// Four e4m3 codes times the first factor of a scale, as bf16.
__device__ inline void DecodeCodes(uint32_t codes, uint32_t factor, uint32_t* out) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out[i] = DecodeE4m3Pair(__byte_perm(codes, 0, i == 0 ? 0x1000u : 0x3020u), factor);
  }
}

__device__ inline KeyPlace PlaceKey(const AttentionRows& a, const KeyList& list, int i) {
  const KeyList::Place place = list.PlaceOf(i);
  if (place.step_row >= 0) {
    return {reinterpret_cast<const std::byte*>(a.step_keys + int64_t{place.step_row} * kDim),
            nullptr};
  }
  const PageFormat& format = (place.compressed ? a.compressed : a.swa).format;
  const EntryRef entry = place.entry;
  return {entry.page + format.value_bytes() * entry.row,
          format.encoding == EntryEncoding::kBf16Rope
              ? nullptr
              : reinterpret_cast<const uint8_t*>(entry.page + format.scale_offset() +
                                                 format.scale_bytes() * entry.row)};
}

// The warp's part of `count` keys, a quarter of a key per lane; rows behind them are zero.
__device__ inline void LoadKeys(const KeyPlace* places, int count, Shared& shared) {
  constexpr int kRounds = kTileKeys / 8;
  const int warp = WarpIndex();
  const int channel = warp * kPart + Lane() % 4 * 16;
  uint4 codes[kRounds];
  uint8_t scales[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int key = 8 * i + Lane() / 4;
    auto* out = reinterpret_cast<uint4*>(&shared.keys[key][channel]);
    scales[i] = 0;
    if (key >= count) {
      out[0] = out[1] = {0, 0, 0, 0};
      continue;
    }
    const KeyPlace place = places[key];
    if (place.scales != nullptr && warp < kWarps - 1) {
      codes[i] = *reinterpret_cast<const uint4*>(place.values + channel);
      scales[i] = place.scales[warp];
    } else {
      // Of an fp8 entry, the rotated channels: bf16 behind the codes.
      const std::byte* from = place.scales == nullptr
                                  ? place.values + 2 * channel
                                  : place.values + kDim - kPart + 2 * (channel - (kDim - kPart));
      CopyAsync16(out, from, true);
      CopyAsync16(out + 1, from + 16, true);
    }
  }
  CommitCopies();
  if (warp < kWarps - 1) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int key = 8 * i + Lane() / 4;
      if (key >= count || places[key].scales == nullptr) continue;
      const CodeScale scale(scales[i], kE4m3Bias);
      uint32_t values[8];
      DecodeCodes(codes[i].x, scale.first, values);
      DecodeCodes(codes[i].y, scale.first, values + 2);
      DecodeCodes(codes[i].z, scale.first, values + 4);
      DecodeCodes(codes[i].w, scale.first, values + 6);
      scale.Finish(values, 8);
      auto* out = reinterpret_cast<uint4*>(&shared.keys[key][channel]);
      out[0] = {values[0], values[1], values[2], values[3]};
      out[1] = {values[4], values[5], values[6], values[7]};
    }
  }
  WaitForCopies<0>();
  __syncwarp();
}

// The warp's part of the queries, as left operands: rows are heads.
struct QueryPart {
  uint32_t words[kPartSteps][4];
  __device__ QueryPart(const AttentionRows& a, int row, int first_head) {
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = first_head + Lane() / 4 + i % 2 * 8;
        const int channel = WarpIndex() * kPart + 16 * s + Lane() % 4 * 2 + i / 2 * 8;
        words[s][i] = 0;
        if (head >= a.heads) continue;
        const float2 pair = *reinterpret_cast<const float2*>(
            a.q + (int64_t{row} * a.heads + head) * kDim + channel);
        words[s][i] = PackPair(pair.x, pair.y);
      }
    }
  }
};

// The warp's part of the scores.
__device__ inline void Score(const QueryPart& q, Shared& shared) {
  const int g = Lane() / 4;
  const int column = Lane() % 4 * 2;
#pragma unroll
  for (int j = 0; j < kKeyTiles; ++j) {
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    const uint16_t* key = &shared.keys[8 * j + g][WarpIndex() * kPart + column];
#pragma unroll
    for (int s = 0; s < kPartSteps; ++s) {
      MmaBf16(acc, q.words[s][0], q.words[s][1], q.words[s][2], q.words[s][3],
              *reinterpret_cast<const uint32_t*>(key + 16 * s),
              *reinterpret_cast<const uint32_t*>(key + 16 * s + 8));
    }
    auto& scores = shared.scores[WarpIndex()];
    *reinterpret_cast<float2*>(&scores[g][8 * j + column]) = {acc[0], acc[1]};
    *reinterpret_cast<float2*>(&scores[g + 8][8 * j + column]) = {acc[2], acc[3]};
  }
}

// Largest and sum over the 16 threads of a head.
__device__ inline float HeadMax(float value) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  }
  return value;
}
__device__ inline float HeadSum(float value) {
#pragma unroll
  for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// Probabilities of a tile, four keys of a head per thread; max and den go on from tile to tile.
__device__ inline void Softmax(const AttentionRows& a, Shared& shared, int count, float* max,
                               float* den) {
  constexpr int kThreadKeys = kTileKeys * kTileHeads / kBlock;
  const int head = static_cast<int>(threadIdx.x) / kTileHeads;
  const int key = static_cast<int>(threadIdx.x) % kTileHeads * kThreadKeys;
  float p[kThreadKeys];
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float4 part = *reinterpret_cast<const float4*>(&shared.scores[w][head][key]);
    const float parts[kThreadKeys] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int k = 0; k < kThreadKeys; ++k) p[k] = w == 0 ? parts[k] : p[k] + parts[k];
  }
  float largest = -INFINITY;
#pragma unroll
  for (int k = 0; k < kThreadKeys; ++k) {
    p[k] = key + k < count ? p[k] * a.scale : -INFINITY;
    largest = fmaxf(largest, p[k]);
  }
  const float new_max = fmaxf(*max, HeadMax(largest));
  const float shrink = expf(*max - new_max);
  float sum = 0.0f;
  uint32_t words[kParts][kThreadKeys / 2];
#pragma unroll
  for (int k = 0; k < kThreadKeys; ++k) {
    float rest = key + k < count ? expf(p[k] - new_max) : 0.0f;
    sum += rest;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint16_t bits = ToBf16(rest);
      rest -= FromBf16(bits);
      if (k % 2 == 0) {
        words[part][k / 2] = bits;
      } else {
        words[part][k / 2] |= static_cast<uint32_t>(bits) << 16;
      }
    }
  }
  *max = new_max;
  *den = *den * shrink + HeadSum(sum);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    *reinterpret_cast<uint2*>(&shared.probabilities[part][head][key]) = {words[part][0],
                                                                         words[part][1]};
  }
  if (key == 0) {
    shared.shrink[head] = shrink;
    shared.max[head] = *max;
    shared.den[head] = *den;
  }
}

// out = out * shrink + probabilities . values, the warp's channels: out[t] are channels 8 t .. + 7.
__device__ inline void AddValues(const Shared& shared, float (*out)[4]) {
  const int g = Lane() / 4;
  const int column = Lane() % 4 * 2;
#pragma unroll
  for (int t = 0; t < kPart / 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[t][i] *= shared.shrink[g + i / 2 * 8];
  }
#pragma unroll
  for (int s = 0; s < kTileKeys / 16; ++s) {
    uint32_t p[kParts][4];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[part][i] = *reinterpret_cast<const uint32_t*>(
            &shared.probabilities[part][g + i % 2 * 8][16 * s + column + i / 2 * 8]);
      }
    }
#pragma unroll
    for (int t = 0; t < kPart / 16; ++t) {
      // Keys 16 s .. + 7 and + 8 .. + 15 of channels 16 t .. + 7, then of + 8 .. + 15.
      uint32_t v[4];
      LoadTransposed(v, &shared.keys[16 * s + Lane() / 8 % 2 * 8 + Lane() % 8]
                                    [WarpIndex() * kPart + 16 * t + Lane() / 16 * 8]);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        MmaBf16(out[2 * t], p[part][0], p[part][1], p[part][2], p[part][3], v[0], v[1]);
        MmaBf16(out[2 * t + 1], p[part][0], p[part][1], p[part][2], p[part][3], v[2], v[3]);
      }
    }
  }
}

// The step's own keys as bf16, which holds them: they lie on the grid of the pages.
__global__ void __launch_bounds__(kBlock)
    StepKeysKernel(const float* keys, int64_t size, uint16_t* out) {
  const int64_t i = (int64_t{blockIdx.x} * kBlock + threadIdx.x) * 4;
  if (i >= size) return;
  const float4 v = *reinterpret_cast<const float4*>(keys + i);
  *reinterpret_cast<uint2*>(out + i) = {PackPair(v.x, v.y), PackPair(v.z, v.w)};
}

__global__ void __launch_bounds__(kBlock, 2) AttentionTileKernel(AttentionRows a) {
  auto* const memory = SharedMemory<uint4>();
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int row = a.first_row + static_cast<int>(blockIdx.z);
  const KeyList list(a, row);
  if (list.where.sequence < 0) return;
  const auto split = static_cast<int>(blockIdx.y);
  const int first = split * kSplitKeys;
  const int end = min(list.size(), first + kSplitKeys);
  if (first >= end) return;
  const auto thread = static_cast<int>(threadIdx.x);
  static_assert(kSplitKeys <= kBlock);
  if (first + thread < end) shared.places[thread] = PlaceKey(a, list, first + thread);
  __syncthreads();
  const int first_head = static_cast<int>(blockIdx.x) * kTileHeads;
  const QueryPart q(a, row, first_head);
  float out[kPart / 8][4] = {};
  float max = -INFINITY;
  float den = 0.0f;
  for (int tile = first; tile < end; tile += kTileKeys) {
    const int count = min(kTileKeys, end - tile);
    LoadKeys(shared.places + (tile - first), count, shared);
    Score(q, shared);
    __syncthreads();
    Softmax(a, shared, count, &max, &den);
    __syncthreads();
    AddValues(shared, out);
    __syncwarp();  // the next tile's keys go where this one's were read
  }
  const bool whole = SplitsOf(list.size()) == 1;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int tile_head = Lane() / 4 + i / 2 * 8;
    const int head = first_head + tile_head;
    if (head >= a.heads) continue;
    const float sink = expf(a.sink[head] - shared.max[tile_head]);
    const float inverse_of = shared.den[tile_head] + sink;
    const int64_t slot = (int64_t{blockIdx.z} * a.splits + split) * a.heads + head;
    float* to = whole ? a.out + (int64_t{row} * a.heads + head) * kDim : a.partial + slot * kDim;
    to += WarpIndex() * kPart + Lane() % 4 * 2 + i % 2;
#pragma unroll
    for (int t = 0; t < kPart / 8; ++t) {
      to[8 * t] = whole ? RoundBf16(out[t][i] / inverse_of) : out[t][i];
    }
    if (!whole && WarpIndex() == 0 && Lane() % 4 == 0 && i % 2 == 0) {
      a.partial_stats[2 * slot] = shared.max[tile_head];
      a.partial_stats[2 * slot + 1] = shared.den[tile_head];
    }
  }
}

constexpr int kCombineThreads = kDim / 4;

// A block per row and head with several splits, four channels per thread.
__global__ void __launch_bounds__(kCombineThreads) CombineSplitsKernel(AttentionRows a) {
  const int row = a.first_row + static_cast<int>(blockIdx.y);
  const auto head = static_cast<int>(blockIdx.x);
  const KeyList list(a, row);
  if (list.where.sequence < 0) return;
  const int splits = SplitsOf(list.size());
  if (splits == 1) return;
  const int64_t slot = int64_t{blockIdx.y} * a.splits * a.heads + head;
  const float* stats = a.partial_stats + 2 * slot;
  float max = -INFINITY;
  for (int s = 0; s < splits; ++s) max = fmaxf(max, stats[2 * s * a.heads]);
  float den = 0.0f;
  float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
  const float* from = a.partial + slot * kDim + 4 * threadIdx.x;
  for (int s = 0; s < splits; ++s) {
    const float weight = expf(stats[2 * s * a.heads] - max);
    den = fmaf(weight, stats[2 * s * a.heads + 1], den);
    const float4 part = *reinterpret_cast<const float4*>(from + int64_t{s} * a.heads * kDim);
    sum = {fmaf(weight, part.x, sum.x), fmaf(weight, part.y, sum.y), fmaf(weight, part.z, sum.z),
           fmaf(weight, part.w, sum.w)};
  }
  den += expf(a.sink[head] - max);
  *reinterpret_cast<float4*>(a.out + (int64_t{row} * a.heads + head) * kDim + 4 * threadIdx.x) = {
      RoundBf16(sum.x / den), RoundBf16(sum.y / den), RoundBf16(sum.z / den),
      RoundBf16(sum.w / den)};
}

bool PagesHaveTiles(const PageView& pages) {
  if (pages.base == nullptr) return true;
  const PageFormat& f = pages.format;
  const bool known = f.encoding == EntryEncoding::kBf16Rope ||
                     (f.encoding == EntryEncoding::kE4m3Rope && f.rope_dim == kPart);
  return known && reinterpret_cast<uintptr_t>(pages.base) % 16 == 0 &&
         pages.block_stride % 16 == 0 && f.value_bytes() % 16 == 0;
}

}  // namespace

bool HasAttentionTiles(const SparseAttentionArgs& args) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return args.q.dim(2) == kDim && PagesHaveTiles(args.swa) && PagesHaveTiles(args.compressed) &&
         aligned(args.q.data()) && aligned(args.step_kv.data()) && aligned(args.out.data());
}

Status PackStepKeys(const AttentionRows& rows, int64_t n, cudaStream_t stream) {
  Launch(StepKeysKernel, Blocks(n * kDim, kBlock * 4), kBlock, 0, stream, rows.step_kv, n * kDim,
         rows.step_keys);
  return LaunchStatus("sparse_attention: keys of the step");
}

Status AttendTiles(const AttentionRows& rows, int n, cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(Shared));
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(AttentionTileKernel, kBytes));
  Launch(AttentionTileKernel,
         dim3(Blocks(rows.heads, kTileHeads), static_cast<unsigned>(rows.splits),
              static_cast<unsigned>(n)),
         kBlock, kBytes, stream, rows);
  FATHOM_RETURN_IF_ERROR(LaunchStatus("sparse_attention"));
  if (rows.splits == 1) return OkStatus();
  Launch(CombineSplitsKernel, dim3(static_cast<unsigned>(rows.heads), static_cast<unsigned>(n)),
         kCombineThreads, 0, stream, rows);
  return LaunchStatus("sparse_attention: splits");
}

}  // namespace fathom::cuda
