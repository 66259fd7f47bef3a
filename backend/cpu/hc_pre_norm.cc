// See backend/ops/hc_pre_norm.h for the contract.
#include <cmath>

#include "backend/cpu/scratch.h"

namespace fathom {
namespace {

float Sigmoid(float z) { return 1.0f / (1.0f + std::exp(-z)); }

// Row softmax of logits, + eps. comb is [source][destination].
void SoftmaxRows(std::span<float> comb, size_t hc, float eps) {
  for (size_t j = 0; j < hc; ++j) {
    const std::span<float> row = comb.subspan(j * hc, hc);
    const float max = *std::max_element(row.begin(), row.end());
    float sum = 0.0f;
    for (float& v : row) sum += v = std::exp(v - max);
    for (float& v : row) v = v / sum + eps;
  }
}

// Sinkhorn4 for any size.
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

  // Blocks of a few rows and tokens. The tasks of one token wait for memory where they are long:
  // six share it better than three.
  constexpr int64_t kTokens = 16;
  constexpr int64_t kLongRow = 8192;
  const int block_rows = n == 1 && cols >= kLongRow ? 4 : 8;
  const int64_t row_blocks = (num_mixes + block_rows - 1) / block_rows;
  const int64_t token_blocks = (n + kTokens - 1) / kTokens;
  ForEach(row_blocks * token_blocks, block_rows * cols * std::min(n, kTokens),
          [&](int64_t task, int) {
            const int row = static_cast<int>(task % row_blocks) * block_rows;
            const int64_t begin = task / row_blocks * kTokens;
            const int count = static_cast<int>(std::min(kTokens, n - begin));
            const float* x[kTokens];
            for (int i = 0; i < count; ++i) x[i] = args.hc.row(begin + i).data();
            cpu::DotBlock(args.fn.row(row).data(), std::min(block_rows, num_mixes - row), cols, x,
                          count, scratch_->mixes.part(begin) + row, Scratch::kMixStride);
          });

  const float* scale = args.scale.data();
  const float* base = args.base.data();
  // A few tokens to a task, whose Sinkhorn steps are done together.
  constexpr int64_t kTogether = 4;
  ForEach((n + kTogether - 1) / kTogether, std::min(n, kTogether) * (8 * cols + 4096),
          [&](int64_t task, int) {
            const int64_t begin = task * kTogether;
            const int64_t end = std::min(n, begin + kTogether);
            float* combs[kTogether];
            for (int64_t i = begin; i < end; ++i) {
              const std::span<const float> copies = args.hc.row(i);
              const float rho = cpu::InverseRms(copies, args.norm_eps);
              float* mix = scratch_->mixes.part(i);
              for (int m = 0; m < num_mixes; ++m) mix[m] *= rho;

              float pre[kMaxHcMult];
              for (size_t c = 0; c < hc; ++c)
                pre[c] = Sigmoid(mix[c] * scale[0] + base[c]) + args.hc_eps;
              const std::span<float> x = args.x.row(i);
              cpu::MixCopies(copies.data(), {pre, hc}, x, official());
              cpu::ScaleRow(x, args.norm_weight.data(), cpu::InverseRms(x, args.norm_eps),
                            official(), x.data());

              const std::span<float> post = args.post.row(i);
              for (size_t c = 0; c < hc; ++c) {
                post[c] = 2.0f * Sigmoid(mix[hc + c] * scale[1] + base[hc + c]);
              }
              const std::span<float> comb = args.comb.row(i);
              for (size_t c = 0; c < comb.size(); ++c) {
                comb[c] = mix[2 * hc + c] * scale[2] + base[2 * hc + c];
              }
              SoftmaxRows(comb, hc, args.hc_eps);
              if (hc != 4) Sinkhorn(comb, hc, args.sinkhorn_iters, args.hc_eps);
              combs[i - begin] = comb.data();
            }
            if (hc == 4) {
              cpu::Sinkhorn4(combs, static_cast<int>(end - begin), args.sinkhorn_iters,
                             args.hc_eps);
            }
          });
  return OkStatus();
}

}  // namespace fathom
