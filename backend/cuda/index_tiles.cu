// Index scores on the matrix unit, for the published sizes: the arithmetic of indexer_topk.cu.
//
// A block per row and 64 entries. Queries and keys are e2m1 values under group scales, so bf16
// holds them, and the products of a group of 32 channels add up exactly in fp32, in any order.
// Groups are added in ascending order, then heads, by a thread per entry.
#include "backend/cuda/formats.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/indexer.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"

namespace fathom::cuda {
namespace {

constexpr int kIndexDim = 128;
constexpr int kEntries = 64;
constexpr int kThreads = 128;
constexpr int kScoreWarps = kThreads / kWarp;
constexpr int kGroups = kIndexDim / kE2m1Group;
// Padded so that eight rows begin in different banks.
constexpr int kKeyRow = kIndexDim + 8;
constexpr int kWeighedRow = kEntries + 4;

// Half of a key, packed, by a thread; its loads are under way together.
constexpr int kHalf = kIndexDim / 2;
__device__ inline void LoadHalf(const PageFormat& f, EntryRef entry, int half, uint4* out) {
  const std::byte* values = EntryValues(f, entry);
  const uint8_t* scales = EntryScales(f, entry);
  uint32_t packed[4] = {};
  const auto store = [&](int unit) { out[unit] = {packed[0], packed[1], packed[2], packed[3]}; };
  switch (f.encoding) {
    case EntryEncoding::kE2m1: {
      constexpr int kWords = kHalf / 8 / 4;
      const auto* from = reinterpret_cast<const uint4*>(values + half * (kHalf / 2));
      const uint4 words[kWords] = {from[0], from[1]};
      const uint8_t bytes[kWords] = {scales[half * kWords], scales[half * kWords + 1]};
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const CodeScale scale(bytes[w], kE2m1Bias);
        const uint32_t codes[4] = {words[w].x, words[w].y, words[w].z, words[w].w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          DecodeE2m1(codes[i], scale.first, packed);
          scale.Finish(packed, 4);
          store(4 * w + i);
        }
      }
      return;
    }
    case EntryEncoding::kE4m3Scaled: {
      // A power of two that is a normal number.
      const CodeScale scale(__float_as_uint(*reinterpret_cast<const float*>(scales)) >> 23,
                            kE4m3Bias);
      const auto* from = reinterpret_cast<const uint4*>(values + half * kHalf);
#pragma unroll
      for (int w = 0; w < kHalf / 16; ++w) {
        const uint4 codes = from[w];
        DecodeE4m3(codes.x, codes.y, scale.first, packed);
        scale.Finish(packed, 4);
        store(2 * w);
        DecodeE4m3(codes.z, codes.w, scale.first, packed);
        scale.Finish(packed, 4);
        store(2 * w + 1);
      }
      return;
    }
    default: {
      const auto* from = reinterpret_cast<const uint4*>(values + 2 * half * kHalf);
#pragma unroll
      for (int unit = 0; unit < kHalf / 8; ++unit) {
        PackBf16(from[unit], packed);
        store(unit);
      }
      return;
    }
  }
}

__global__ void __launch_bounds__(kThreads) ScoreTileKernel(IndexRows a) {
  auto* const memory = SharedMemory<uint4>();
  auto* keys = reinterpret_cast<uint16_t*>(memory);                     // [kEntries][kKeyRow]
  auto* weighed = reinterpret_cast<float*>(keys + kEntries * kKeyRow);  // [heads][kWeighedRow]
  const int row = a.first_row + static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kEntries;
  const int count = min(kEntries, EntriesToScore(a, row) - first);
  if (count <= 0) return;
  const BlockTable& table = a.plan.TablesFor(CacheKind::kC4IndexKeys)[a.plan.rows[row].sequence];
  const auto thread = static_cast<int>(threadIdx.x);
  static_assert(kThreads == 2 * kEntries);
  {
    const int entry = thread / 2;
    const int half = thread % 2;
    auto* out = reinterpret_cast<uint4*>(keys + entry * kKeyRow + half * kHalf);
    if (entry < count) {
      LoadHalf(a.keys.format, Locate(a.keys, table, first + entry), half, out);
    } else {
      for (int unit = 0; unit < kHalf / 8; ++unit) out[unit] = {0, 0, 0, 0};
    }
  }
  __syncthreads();
  const int g = Lane() / 4;
  const int column = Lane() % 4 * 2;
  const uint16_t* queries = a.packed + int64_t{blockIdx.y} * a.heads * kIndexDim;
  const float* weights = a.query_weights + int64_t{blockIdx.y} * a.heads;
  for (int head = WarpIndex() * 16; head < a.heads; head += kScoreWarps * 16) {
    uint32_t q[kIndexDim / 16][4];
#pragma unroll
    for (int s = 0; s < kIndexDim / 16; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        q[s][i] = *reinterpret_cast<const uint32_t*>(queries + (head + g + i % 2 * 8) * kIndexDim +
                                                     16 * s + column + i / 2 * 8);
      }
    }
    const float low_weight = weights[head + g];
    const float high_weight = weights[head + g + 8];
#pragma unroll 2
    for (int j = 0; j < kEntries / 8; ++j) {
      const uint16_t* key = keys + (8 * j + g) * kKeyRow + column;
      float dot[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int s = 2 * group; s < 2 * group + 2; ++s) {
          MmaBf16(sum, q[s][0], q[s][1], q[s][2], q[s][3],
                  *reinterpret_cast<const uint32_t*>(key + 16 * s),
                  *reinterpret_cast<const uint32_t*>(key + 16 * s + 8));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) dot[i] += sum[i];
      }
      float* to = weighed + (head + g) * kWeighedRow + 8 * j + column;
      to[0] = low_weight * fmaxf(dot[0], 0.0f);
      to[1] = low_weight * fmaxf(dot[1], 0.0f);
      to[8 * kWeighedRow] = high_weight * fmaxf(dot[2], 0.0f);
      to[8 * kWeighedRow + 1] = high_weight * fmaxf(dot[3], 0.0f);
    }
  }
  __syncthreads();
  if (thread >= count) return;
  float score = 0.0f;
#pragma unroll 8
  for (int h = 0; h < a.heads; ++h) score += weighed[h * kWeighedRow + thread];
  a.scores[int64_t{blockIdx.y} * a.score_stride + first + thread] = score;
}

size_t SharedBytes(int heads) {
  return kEntries * kKeyRow * sizeof(uint16_t) +
         static_cast<size_t>(heads) * kWeighedRow * sizeof(float);
}

}  // namespace

bool HasIndexTiles(const IndexerTopkArgs& args) {
  const PageView& keys = args.keys;
  constexpr size_t kMostShared = size_t{96} << 10;
  return args.q.dim(2) == kIndexDim && args.q.dim(1) > 0 && args.q.dim(1) % 16 == 0 &&
         SharedBytes(static_cast<int>(args.q.dim(1))) <= kMostShared &&
         keys.format.encoding != EntryEncoding::kF32 &&
         reinterpret_cast<uintptr_t>(keys.base) % 16 == 0 && keys.block_stride % 16 == 0;
}

Status ScoreTiles(const IndexRows& rows, int count, int most, cudaStream_t stream) {
  const size_t bytes = SharedBytes(rows.heads);
  FATHOM_RETURN_IF_ERROR(AllowSharedMemory(ScoreTileKernel, bytes));
  Launch(ScoreTileKernel, dim3(Blocks(most, kEntries), static_cast<unsigned>(count)), kThreads,
         bytes, stream, rows);
  return LaunchStatus("indexer_topk: scores");
}

}  // namespace fathom::cuda
