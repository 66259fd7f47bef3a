// See backend/ops/hc_pre_norm.h for the contract.
#include <cmath>

#include "backend/cpu/scratch.h"

namespace fathom {
namespace {

float Sigmoid(float z) { return 1.0f / (1.0f + std::exp(-z)); }

// comb is [source][destination], given as logits and left with column sums near 1.
void Sinkhorn(std::span<float> comb, size_t hc, int iterations, float eps) {
  const auto divide_rows = [&] {
    for (size_t j = 0; j < hc; ++j) {
      float sum = 0.0f;
      for (size_t k = 0; k < hc; ++k) sum += comb[j * hc + k];
      for (size_t k = 0; k < hc; ++k) comb[j * hc + k] /= sum + eps;
    }
  };
  const auto divide_columns = [&] {
    float sums[kMaxHcMult] = {};
    for (size_t j = 0; j < hc; ++j) {
      for (size_t k = 0; k < hc; ++k) sums[k] += comb[j * hc + k];
    }
    for (size_t j = 0; j < hc; ++j) {
      for (size_t k = 0; k < hc; ++k) comb[j * hc + k] /= sums[k] + eps;
    }
  };
  for (size_t j = 0; j < hc; ++j) {
    const std::span<float> row = comb.subspan(j * hc, hc);
    const float max = *std::max_element(row.begin(), row.end());
    float sum = 0.0f;
    for (float& v : row) sum += v = std::exp(v - max);
    for (float& v : row) v = v / sum + eps;
  }
  divide_columns();
  for (int i = 1; i < iterations; ++i) {
    divide_rows();
    divide_columns();
  }
}

}  // namespace

Status CpuBackend::DoHcPreNorm(const HcPreNormArgs& args) {
  const int64_t n = args.hc.dim(0);
  FATHOM_RETURN_IF_ERROR(Fits("hc_pre_norm: rows", n, scratch_->limits.max_rows));
  const auto hc = static_cast<size_t>(args.hc.dim(1));
  const int num_mixes = static_cast<int>(args.fn.dim(0));
  const int64_t cols = args.fn.dim(1);

  // Blocks of eight rows and a few tokens: with one token the 24 rows are three tasks.
  constexpr int kRows = 8;
  constexpr int64_t kTokens = 16;
  const int64_t row_blocks = (num_mixes + kRows - 1) / kRows;
  const int64_t token_blocks = (n + kTokens - 1) / kTokens;
  ForEach(row_blocks * token_blocks, kRows * cols * std::min(n, kTokens), [&](int64_t task, int) {
    const int row = static_cast<int>(task % row_blocks) * kRows;
    const int64_t begin = task / row_blocks * kTokens;
    const int count = static_cast<int>(std::min(kTokens, n - begin));
    const float* x[kTokens];
    for (int i = 0; i < count; ++i) x[i] = args.hc.row(begin + i).data();
    cpu::DotBlock(args.fn.row(row).data(), std::min(kRows, num_mixes - row), cols, x, count,
                  scratch_->mixes.part(begin) + row, Scratch::kMixStride);
  });

  const float* scale = args.scale.data();
  const float* base = args.base.data();
  ForEach(n, 8 * cols + 4096, [&](int64_t i, int) {
    const std::span<const float> copies = args.hc.row(i);
    const float rho = cpu::InverseRms(copies, args.norm_eps);
    float* mix = scratch_->mixes.part(i);
    for (int m = 0; m < num_mixes; ++m) mix[m] *= rho;

    float pre[kMaxHcMult];
    for (size_t c = 0; c < hc; ++c) pre[c] = Sigmoid(mix[c] * scale[0] + base[c]) + args.hc_eps;
    const std::span<float> x = args.x.row(i);
    cpu::MixCopies(copies.data(), {pre, hc}, x, official());
    cpu::ScaleRow(x, args.norm_weight.data(), cpu::InverseRms(x, args.norm_eps), official(),
                  x.data());

    const std::span<float> post = args.post.row(i);
    for (size_t c = 0; c < hc; ++c) {
      post[c] = 2.0f * Sigmoid(mix[hc + c] * scale[1] + base[hc + c]);
    }
    const std::span<float> comb = args.comb.row(i);
    for (size_t c = 0; c < comb.size(); ++c) {
      comb[c] = mix[2 * hc + c] * scale[2] + base[2 * hc + c];
    }
    Sinkhorn(comb, hc, args.sinkhorn_iters, args.hc_eps);
  });
  return OkStatus();
}

}  // namespace fathom
