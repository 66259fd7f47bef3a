// Index scores on the matrix unit, for the published sizes: the arithmetic of indexer_topk.cu.
//
// A block per row and 64 entries. Queries and keys are e2m1 values under group scales, so bf16
// holds them, and the products of a group of 32 channels add up exactly in fp32, in any order.
// Groups are added in ascending order, then heads, by a thread per entry.
#include "backend/cuda/formats.cuh"
#include "backend/cuda/fragments.cuh"
#include "backend/cuda/indexer.cuh"
#include "backend/cuda/page_codec.cuh"

namespace fathom::cuda {
namespace {

constexpr int kIndexDim = 128;
constexpr int kEntries = 64;
constexpr int kThreads = 128;
constexpr int kScoreWarps = kThreads / kWarp;
constexpr int kGroups = kIndexDim / kE2m1Group;
constexpr int kUnitsOfKey = kIndexDim / 8;
// Padded so that eight rows begin in different banks.
constexpr int kKeyRow = kIndexDim + 8;
constexpr int kWeighedRow = kEntries + 4;

// Channels 8 unit .. + 7 of a key, packed.
__device__ inline uint4 LoadUnit(const PageFormat& f, EntryRef entry, int unit) {
  const std::byte* values = EntryValues(f, entry);
  const uint8_t* scales = EntryScales(f, entry);
  uint32_t out[4];
  switch (f.encoding) {
    case EntryEncoding::kE2m1: {
      const CodeScale scale(scales[unit * 8 / kE2m1Group], kE2m1Bias);
      DecodeE2m1(*reinterpret_cast<const uint32_t*>(values + 4 * unit), scale, out);
      break;
    }
    case EntryEncoding::kE4m3Scaled: {
      // A power of two that is a normal number.
      const uint32_t scale = __float_as_uint(*reinterpret_cast<const float*>(scales)) >> 23;
      const uint2 codes = *reinterpret_cast<const uint2*>(values + 8 * unit);
      DecodeE4m3(codes.x, codes.y, CodeScale(scale, kE4m3Bias), out);
      break;
    }
    default:
      PackBf16(*reinterpret_cast<const uint4*>(values + 16 * unit), out);
      break;
  }
  return {out[0], out[1], out[2], out[3]};
}

__global__ void __launch_bounds__(kThreads) ScoreTileKernel(IndexRows a) {
  extern __shared__ uint4 memory[];
  auto* keys = reinterpret_cast<uint16_t*>(memory);                     // [kEntries][kKeyRow]
  auto* weighed = reinterpret_cast<float*>(keys + kEntries * kKeyRow);  // [heads][kWeighedRow]
  const int row = a.first_row + static_cast<int>(blockIdx.y);
  const int first = static_cast<int>(blockIdx.x) * kEntries;
  const int count = min(kEntries, EntriesToScore(a, row) - first);
  if (count <= 0) return;
  const BlockTable& table = a.plan.TablesFor(CacheKind::kC4IndexKeys)[a.plan.rows[row].sequence];
  const auto thread = static_cast<int>(threadIdx.x);
  for (int i = thread; i < kEntries * kUnitsOfKey; i += kThreads) {
    const int entry = i / kUnitsOfKey;
    const int unit = i % kUnitsOfKey;
    uint4 words = {0, 0, 0, 0};
    if (entry < count) words = LoadUnit(a.keys.format, Locate(a.keys, table, first + entry), unit);
    *reinterpret_cast<uint4*>(keys + entry * kKeyRow + 8 * unit) = words;
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
  FATHOM_CUDA(cudaFuncSetAttribute(ScoreTileKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes)));
  ScoreTileKernel<<<dim3(Blocks(most, kEntries), static_cast<unsigned>(count)), kThreads, bytes,
                    stream>>>(rows);
  return LaunchStatus("indexer_topk: scores");
}

}  // namespace fathom::cuda
