// Pieces of several operations, and the operations that work on each row alone.
#include <math.h>

#include "example.h"

// Eight sums, so that the compiler may use vector registers; in double the order is immaterial to
// an fp32 result.
float dot(const float* a, const float* b, int64_t n) {
  double sums[8] = {0};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t k = 0; k < 8; ++k) sums[k] += (double)a[i + k] * (double)b[i + k];
  }
  double total = 0.0;
  for (; i < n; ++i) total += (double)a[i] * (double)b[i];
  for (int k = 0; k < 8; ++k) total += sums[k];
  return (float)total;
}

float sigmoid(float z) { return 1.0f / (1.0f + expf(-z)); }

float inverse_rms(const float* x, int64_t n, float eps) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += (double)x[i] * (double)x[i];
  return 1.0f / sqrtf((float)(sum / (double)n) + eps);
}

void rms_norm_row(const FathomBackend* b, const float* x, const float* weight, int64_t n, float eps,
                  float* out) {
  const float inverse = inverse_rms(x, n, eps);
  for (int64_t i = 0; i < n; ++i) out[i] = bf16(b, weight[i] * (x[i] * inverse));
}

void rope_row(const FathomBackend* b, float* x, int64_t n, const float* cos_sin, int64_t pairs,
              float sign) {
  float* rotated = x + n - 2 * pairs;
  for (int64_t k = 0; k < pairs; ++k) {
    const float c = cos_sin[2 * k], s = sign * cos_sin[2 * k + 1];
    const float even = rotated[2 * k], odd = rotated[2 * k + 1];
    rotated[2 * k] = bf16(b, even * c - odd * s);
    rotated[2 * k + 1] = bf16(b, even * s + odd * c);
  }
}

void hadamard_row(FathomBackend* b, float* x, int64_t n) {
  double* v = b->acc;
  for (int64_t i = 0; i < n; ++i) v[i] = x[i];
  for (int64_t half = 1; half < n; half *= 2) {
    for (int64_t i = 0; i < n; i += 2 * half) {
      for (int64_t j = i; j < i + half; ++j) {
        const double first = v[j], second = v[j + half];
        v[j] = first + second;
        v[j + half] = first - second;
      }
    }
  }
  const double scale = 1.0 / sqrt((double)n);
  for (int64_t i = 0; i < n; ++i) x[i] = bf16(b, (float)(v[i] * scale));
}

FathomStatus example_rms_norm(FathomBackend* b, const FathomRmsNormArgs* a, FathomError* error) {
  (void)error;
  const int64_t n = a->x.shape[0], width = a->x.shape[1];
  for (int64_t i = 0; i < n; ++i) {
    rms_norm_row(b, a->x.data + i * width, a->weight.data, width, a->eps, a->out.data + i * width);
  }
  return FATHOM_OK;
}

FathomStatus example_rope_table(FathomBackend* b, const FathomRopeTableArgs* a,
                                FathomError* error) {
  (void)b;
  (void)error;
  const int64_t pairs = a->frequencies.shape[0];
  for (int64_t i = 0; i < a->num_positions; ++i) {
    float* row = a->cos_sin.data + i * pairs * 2;
    for (int64_t k = 0; k < pairs; ++k) {
      const float angle = (float)a->positions[i] * a->frequencies.data[k];
      row[2 * k] = (float)cos((double)angle);
      row[2 * k + 1] = (float)sin((double)angle);
    }
  }
  return FATHOM_OK;
}
