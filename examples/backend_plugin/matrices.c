// Matrix products. A row of a matrix is decoded once for all rows of the input.
#include <string.h>

#include "example.h"

// Quantised weights have a multiple of 128 columns.
void weight_row(const FathomBackend* b, const FathomWeight* weight, int64_t row, float* out) {
  const int64_t cols = weight->cols;
  switch (weight->dtype) {
    case FATHOM_F8E4M3: {
      const uint8_t* codes = (const uint8_t*)weight->data + row * cols;
      const uint8_t* scales = weight->scale + row / 128 * (cols / 128);
      for (int64_t begin = 0; begin < cols; begin += 128) {
        const float scale = ue8m0_to_float(scales[begin / 128]);
        for (int64_t k = begin; k < begin + 128; ++k) out[k] = b->e4m3[codes[k]] * scale;
      }
      return;
    }
    case FATHOM_E2M1: {
      const uint8_t* packed = (const uint8_t*)weight->data + row * (cols / 2);
      const uint8_t* scales = weight->scale + row * (cols / 32);
      for (int64_t begin = 0; begin < cols; begin += 32) {
        const float scale = ue8m0_to_float(scales[begin / 32]);
        for (int64_t k = begin; k < begin + 32; k += 2) {
          out[k] = e2m1_values[packed[k / 2] & 15] * scale;
          out[k + 1] = e2m1_values[packed[k / 2] >> 4] * scale;
        }
      }
      return;
    }
    case FATHOM_BF16: {
      const uint16_t* bits = (const uint16_t*)weight->data + row * cols;
      for (int64_t k = 0; k < cols; ++k) out[k] = bf16_to_float(bits[k]);
      return;
    }
    default:
      memcpy(out, (const float*)weight->data + row * cols, (size_t)cols * sizeof(float));
  }
}

// Official code rounds the inputs of quantised weights to e4m3, in groups of 128 along the columns.
void quantize_input(const FathomBackend* b, const FathomWeight* weight, float* x, int64_t n) {
  const int quantised = weight->dtype == FATHOM_F8E4M3 || weight->dtype == FATHOM_E2M1;
  if (quantised && !b->exact) simulate_e4m3(b, x, n, 128);
}

void multiply(FathomBackend* b, const float* x, int64_t rows, const FathomWeight* weight, int round,
              float* out) {
  for (int64_t r = 0; r < weight->rows; ++r) {
    weight_row(b, weight, r, b->w);
    for (int64_t i = 0; i < rows; ++i) {
      const float y = dot(x + i * weight->cols, b->w, weight->cols);
      out[i * weight->rows + r] = round ? bf16(b, y) : y;
    }
  }
}

FathomStatus example_linear(FathomBackend* b, const FathomLinearArgs* a, FathomError* error) {
  (void)error;
  const int64_t n = a->x.shape[0], cols = a->x.shape[1];
  memcpy(b->x, a->x.data, (size_t)(n * cols) * sizeof(float));
  quantize_input(b, &a->first, b->x, n * cols);
  multiply(b, b->x, n, &a->first, a->round_output, a->first_out.data);
  if (a->second.data != NULL) {
    multiply(b, b->x, n, &a->second, a->round_output, a->second_out.data);
  }
  return FATHOM_OK;
}

FathomStatus example_inverse_rope_out(FathomBackend* b, const FathomInverseRopeOutArgs* a,
                                      FathomError* error) {
  (void)error;
  const int64_t n = a->o.shape[0], heads = a->o.shape[1], d = a->o.shape[2];
  const int64_t pairs = a->cos_sin.shape[1], group_width = a->wo_a.cols;
  const int64_t rank = a->wo_a.rows / a->groups;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      rope_row(b, a->o.data + (i * heads + h) * d, d, a->cos_sin.data + i * pairs * 2, pairs,
               -1.0f);
    }
    if (a->quantise_input) quantize_input(b, &a->wo_a, a->o.data + i * heads * d, heads * d);
  }
  for (int64_t r = 0; r < a->wo_a.rows; ++r) {
    weight_row(b, &a->wo_a, r, b->w);
    for (int64_t i = 0; i < n; ++i) {
      const float* group = a->o.data + i * heads * d + r / rank * group_width;
      a->out.data[i * a->wo_a.rows + r] = bf16(b, dot(group, b->w, group_width));
    }
  }
  return FATHOM_OK;
}
