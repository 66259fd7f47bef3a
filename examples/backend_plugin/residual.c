// The residual stream's copies: hyper-connections, and what enters and leaves them.
#include <math.h>

#include "example.h"

enum { kMaxCopies = 8 };

FathomStatus example_embed_expand(FathomBackend* b, const FathomEmbedExpandArgs* a,
                                  FathomError* error) {
  (void)error;
  const int64_t copies = a->hc.shape[1], width = a->hc.shape[2];
  for (int64_t i = 0; i < a->num_token_ids; ++i) {
    for (int64_t c = 0; c < copies; ++c) {
      weight_row(b, &a->table, a->token_ids[i], a->hc.data + (i * copies + c) * width);
    }
  }
  return FATHOM_OK;
}

// y = bf16(sum over copies of (sigmoid(mix * scale + base) + eps) * copy), where
// mix = (fn copies) * rho.
static void weighted_sum(const FathomBackend* b, const float* copies, int64_t num_copies,
                         int64_t width, const float* mix, float scale, const float* base, float eps,
                         float* y) {
  for (int64_t d = 0; d < width; ++d) y[d] = 0.0f;
  for (int64_t c = 0; c < num_copies; ++c) {
    const float pre = sigmoid(mix[c] * scale + base[c]) + eps;
    for (int64_t d = 0; d < width; ++d) y[d] += pre * copies[c * width + d];
  }
  for (int64_t d = 0; d < width; ++d) y[d] = bf16(b, y[d]);
}

// Divides the n values that are `stride` apart by their sum + eps.
static void normalise(float* values, int64_t n, int64_t stride, float eps) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += values[i * stride];
  for (int64_t i = 0; i < n; ++i) values[i * stride] /= sum + eps;
}

// comb is [source][destination]: logits, which become weights whose columns sum to about 1.
static void sinkhorn(float* comb, int64_t copies, int iterations, float eps) {
  for (int64_t j = 0; j < copies; ++j) {
    float* row = comb + j * copies;
    float max = row[0], sum = 0.0f;
    for (int64_t k = 0; k < copies; ++k) max = row[k] > max ? row[k] : max;
    for (int64_t k = 0; k < copies; ++k) sum += row[k] = expf(row[k] - max);
    for (int64_t k = 0; k < copies; ++k) row[k] = row[k] / sum + eps;
  }
  for (int64_t k = 0; k < copies; ++k) normalise(comb + k, copies, copies, eps);
  for (int i = 1; i < iterations; ++i) {
    for (int64_t j = 0; j < copies; ++j) normalise(comb + j * copies, copies, 1, eps);
    for (int64_t k = 0; k < copies; ++k) normalise(comb + k, copies, copies, eps);
  }
}

FathomStatus example_hc_pre_norm(FathomBackend* b, const FathomHcPreNormArgs* a,
                                 FathomError* error) {
  (void)error;
  const int64_t copies = a->hc.shape[1], width = a->hc.shape[2], all = copies * width;
  const float *scale = a->scale.data, *base = a->base.data;
  float mix[(2 + kMaxCopies) * kMaxCopies];
  for (int64_t i = 0; i < a->hc.shape[0]; ++i) {
    const float* hc = a->hc.data + i * all;
    const float rho = inverse_rms(hc, all, a->norm_eps);
    for (int64_t m = 0; m < a->fn.shape[0]; ++m) mix[m] = dot(a->fn.data + m * all, hc, all) * rho;

    weighted_sum(b, hc, copies, width, mix, scale[0], base, a->hc_eps, b->y);
    rms_norm_row(b, b->y, a->norm_weight.data, width, a->norm_eps, a->x.data + i * width);
    for (int64_t c = 0; c < copies; ++c) {
      a->post.data[i * copies + c] = 2.0f * sigmoid(mix[copies + c] * scale[1] + base[copies + c]);
    }
    float* comb = a->comb.data + i * copies * copies;
    for (int64_t c = 0; c < copies * copies; ++c) {
      comb[c] = mix[2 * copies + c] * scale[2] + base[2 * copies + c];
    }
    sinkhorn(comb, copies, a->sinkhorn_iters, a->hc_eps);
  }
  return FATHOM_OK;
}

FathomStatus example_hc_post(FathomBackend* b, const FathomHcPostArgs* a, FathomError* error) {
  (void)error;
  const int64_t copies = a->hc.shape[1], width = a->hc.shape[2];
  for (int64_t i = 0; i < a->hc.shape[0]; ++i) {
    float* hc = a->hc.data + i * copies * width;
    const float* comb = a->comb.data + i * copies * copies;
    for (int64_t d = 0; d < width; ++d) {
      float before[kMaxCopies];
      for (int64_t j = 0; j < copies; ++j) before[j] = hc[j * width + d];
      for (int64_t k = 0; k < copies; ++k) {
        double mixed = 0.0;
        for (int64_t j = 0; j < copies; ++j) mixed += (double)comb[j * copies + k] * before[j];
        const float added = a->post.data[i * copies + k] * a->out.data[i * width + d];
        hc[k * width + d] = bf16(b, (float)(added + mixed));
      }
    }
  }
  return FATHOM_OK;
}

FathomStatus example_head(FathomBackend* b, const FathomHeadArgs* a, FathomError* error) {
  (void)error;
  const int64_t copies = a->hc.shape[1], width = a->hc.shape[2], all = copies * width;
  for (int64_t m = 0; m < a->num_rows; ++m) {
    const float* hc = a->hc.data + a->rows[m] * all;
    const float rho = inverse_rms(hc, all, a->norm_eps);
    float mix[kMaxCopies];
    for (int64_t c = 0; c < copies; ++c) mix[c] = dot(a->fn.data + c * all, hc, all) * rho;
    float* y = b->x + m * width;
    weighted_sum(b, hc, copies, width, mix, a->scale.data[0], a->base.data, a->hc_eps, y);
    rms_norm_row(b, y, a->norm_weight.data, width, a->norm_eps, y);
  }
  multiply(b, b->x, a->num_rows, &a->head, 0, a->logits.data);
  return FATHOM_OK;
}
