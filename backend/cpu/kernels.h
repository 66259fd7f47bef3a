// The vectorised loops that the operations of CpuBackend are made of.
//
// Each is compiled once per instruction set (Highway's foreach_target) and picked at run time.
// Pure functions on memory of the caller; any thread may call them. Pointers need no alignment.
// A result element depends on its own inputs and on the instruction set only: how many rows a call
// covers, and how rows are split over calls, never changes a bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "backend/cpu/dot/byte_kernels.h"
#include "backend/page_format.h"
#include "backend/weights.h"

namespace fathom::cpu {

// What the kernels compute with: the instruction set (dot/isa.h), and the width of its vectors in
// bits.
struct VectorUnit {
  std::string_view name;
  int bits = 0;
};
VectorUnit ChosenVectorUnit();  // kernels_rows.cc

// ---- Matrix products (kernels_matmul.cc, kernels_stored.cc, kernels_panels.cc)

// Weight rows that one task decodes and multiplies.
inline constexpr int kRowBlock = 16;

// Rows [row, row + num_rows) as exact floats (every scale is a power of two); out is
// [num_rows][cols].
void DecodeRows(const WeightView& weight, int row, int num_rows, float* out);

// The products below are fp32 sums in one order: lane l of a vector sums the products at cols l,
// l + L, l + 2L, ... in turn (L lanes), then the lanes are halved until one is left.

// out[i * out_stride + r] = w_r . x_i for r < num_rows <= kRowBlock, i < num_x. Row r begins at
// w + r * cols. Elements of `out` up to the next multiple of four rows are overwritten as well.
void DotBlock(const float* w, int num_rows, int64_t cols, const float* const* x, int num_x,
              float* out, int64_t out_stride);

// The same for rows as they are stored, decoded on the way; meant for few inputs. `scratch` has
// room for four decoded rows (for codes that need the scalar way).
void DotStored(const WeightView& weight, int row, int num_rows, const float* const* x, int num_x,
               float* scratch, float* out, int64_t out_stride);

// The same for many inputs, from panels of 2 * PanelLanes() decoded rows:
// [lanes of the sum, in the order in which they are halved][steps + 1][2 * PanelLanes()], where
// steps is cols / PanelLanes(), rounded up. Columns behind the last are zeros.
int PanelLanes();
int64_t PanelSize(int64_t cols);  // floats
// One half of a panel: num_rows <= PanelLanes() rows, the last one repeated. The other half begins
// PanelLanes() floats later. `scratch` has room for PanelLanes() decoded rows.
void PackPanel(const WeightView& weight, int row, int num_rows, float* scratch, float* out);
// x in the order of a panel's columns; out has steps * PanelLanes() floats.
void PermuteInput(std::span<const float> x, float* out);
// out[i * out_stride + r] for r < 2 * PanelLanes(); x[i] comes from PermuteInput.
void DotPanel(const float* panel, int64_t cols, const float* const* x, int num_x, float* out,
              int64_t out_stride);

// out = the values of x after official e4m3 quantisation in groups of 64 or 128; like SimulateE4m3.
// out may be x.
void QuantiseE4m3Groups(std::span<const float> x, int group, float* out);

// out = the values of x after e2m1 quantisation in groups of 32; like SimulateE2m1. out may be x.
void QuantiseE2m1Groups(std::span<const float> x, float* out);

// The official e4m3 values of x (groups of 128, as QuantiseE4m3Groups) as digits for FP4 weights.
// Exact. The size of x is a multiple of 128.
void SplitE4m3Row(std::span<const float> x, const ByteSlot& out);
// x as signed bytes with one fp32 scale per group, amax / 127: for FP4 weights (kFp4Group), or for
// int8 ones (kInt8Group). Lossy. Only first, bias and scale are written.
void Int8Row(std::span<const float> x, int group, const ByteSlot& out);

// One expert's hidden row: out[i] = bf16(silu(g) * u * weight) with g and u rounded to bf16 first,
// g cut to at most `limit` and u to +-limit (0: no limit); nothing rounds without `round`.
void SwigluRow(const float* gate, const float* up, int n, float limit, float weight, bool round,
               float* out);

// out[i] += x[i].
void AddRow(std::span<const float> x, float* out);

// out = bf16(x), as floats; out may be x.
void RoundBf16(std::span<const float> x, float* out);

// ---- One token's row (kernels_rows.cc); `round` is set in official numerics

// rsqrt(mean(x^2) + eps), the mean in double.
float InverseRms(std::span<const float> x, float eps);
// out[i] = bf16(weight[i] * (x[i] * inverse)); out may be x.
void ScaleRow(std::span<const float> x, const float* weight, float inverse, bool round, float* out);
// y[i] = bf16(sum over c of pre[c] * copies[c][i]), c ascending.
void MixCopies(const float* copies, std::span<const float> pre, std::span<float> y, bool round);
// Rotates the last channels of x, adjacent pairs; cos_sin is [pairs][2]. sign -1 rotates back.
void RopeRow(std::span<float> x, std::span<const float> cos_sin, float sign, bool round);
// The official norm of one query head: in official numerics every step of it rounds to bf16.
void QueryNorm(std::span<float> q, float eps, bool round);

// ---- Rotations and mixing (kernels_rotations.cc)

// Orthonormal Walsh-Hadamard transform in Sylvester order; the size is a power of two, at most
// kMaxHadamard.
inline constexpr int kMaxHadamard = 1024;
void HadamardRow(std::span<float> x, bool round);
// copies[k][i] = bf16(post[k] * out[i] + sum over j of comb[j][k] * copies[j][i]), the sum in
// double.
void HcPostRow(float* copies, int hc, std::span<const float> out, const float* post,
               const float* comb, bool round);
// Of each of `num` 4 x 4 matrices [source][destination]: columns divided by their sums + eps, and
// then, iterations - 1 times, rows and columns. Sums in ascending order; the bits of a plain loop.
void Sinkhorn4(float* const* comb, int num, int iterations, float eps);

// ---- Exponentials, in double and rounded once (kernels_exp.cc)

// One item of a compression window: its K and score rows, which may stand at any byte. `ape` is
// added to the scores; null where they have it already.
struct PoolItem {
  const std::byte* k = nullptr;
  const std::byte* score = nullptr;
  const float* ape = nullptr;
};
inline constexpr int kMaxPoolItems = 128;
// Softmax over the items' scores and weighted sum of their K values, each channel on its own; fp32,
// items in order.
void PoolItems(std::span<const PoolItem> items, std::span<float> out);
// x[i] = sqrt(ln(1 + e^x[i])), the logarithm rounded to fp32.
void SqrtSoftplus(std::span<float> x);

// ---- Attention (kernels_attention.cc)

inline constexpr int kTile = 64;  // entries that are decoded and scored together

// Entry `row` of a page as floats: LoadEntry, vectorised.
void DecodeEntry(const PageFormat& format, EntryRef entry, float* out);

// One tile of online softmax for the heads of one query.
// q and out are [num_heads][dim], kv is [num][dim] with num <= kTile, max and den [num_heads].
// Before the first tile max is -inf, den 0 and out 0. fp32; entries in ascending order.
void AttendTile(const float* q, int num_heads, int dim, const float* kv, int num, float scale,
                float* max, float* den, float* out);
// Ends it: out = bf16(out / (den + exp(sink - max))).
void FinishAttention(int num_heads, int dim, const float* max, const float* den, const float* sink,
                     bool round, float* out);

// ---- Indexer (kernels_index.cc)

// The official e2m1 values of x (groups of 32, as QuantiseE2m1Groups) as bytes for FP4 panels.
// Exact. Only first, bias and scale are written. A group with infinities or NaN is NaN.
void Fp4Row(std::span<const float> x, const ByteSlot& out);

// scores[j] = sum over h ascending of weights[h] * max(dots[h * stride + j], 0), fp32, for j < num
// <= 2 * kMaxLanes. NaN counts as 0. Rows of `dots` have 2 * kMaxLanes elements that may be read.
void WeightedRelu(const float* dots, int64_t stride, const float* weights, int num_heads, int num,
                  float* scores);

// out[c][j] = keys[j][c] for j < num <= kTile; keys are [num][dim], out is [dim][kTile]. Elements
// from num to the next multiple of four are overwritten as well.
void TransposeKeys(const float* keys, int num, int dim, float* out);
// The same scores from floats: keys as left by TransposeKeys, q is [num_heads][dim]. A dot product
// is the sum, in ascending order, of those of 32 channels each: sums of e2m1 products are exact
// there in any order, so these are the bits of the byte kernels.
void IndexScores(const float* q, const float* weights, int num_heads, int dim, const float* keys,
                 int num, float* scores);

}  // namespace fathom::cpu
