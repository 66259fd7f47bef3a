// The backend's life, and the table that the library exports.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "example.h"

FathomStatus fail(FathomError* error, FathomStatus status, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error->message, sizeof(error->message), format, values);
  va_end(values);
  return status;
}

static void fill_e4m3(float* values) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float magnitude =
        exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    values[code] = (code & 0x7F) == 0x7F ? NAN : code < 128 ? magnitude : -magnitude;
  }
}

static FathomStatus create(const FathomCreateArgs* args, FathomBackend** backend,
                           FathomError* error) {
  FathomBackend* b = calloc(1, sizeof(*b));
  if (b == NULL) return fail(error, FATHOM_OUT_OF_MEMORY, "no memory for a backend");
  b->exact = args->numerics == FATHOM_EXACT;
  fill_e4m3(b->e4m3);
  *backend = b;
  return FATHOM_OK;
}

static void destroy(FathomBackend* b) {
  void* const scratch[] = {b->x, b->w,   b->gate,     b->up,  b->y,     b->sum,
                           b->q, b->key, b->per_head, b->acc, b->scores};
  for (size_t i = 0; i < sizeof(scratch) / sizeof(scratch[0]); ++i) free(scratch[i]);
  free(b);
}

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Room for a times b elements; at least one, so that null means failure.
static void* room(int64_t a, int64_t b, size_t element_bytes) {
  return calloc((size_t)larger(a, 1), (size_t)larger(b, 1) * element_bytes);
}

static FathomStatus prepare(FathomBackend* b, const FathomLimits* limits, FathomError* error) {
  b->limits = *limits;
  const int64_t cols = larger(limits->max_cols, limits->max_expert_width);
  // A compressor's stored row: keys and scores of two halves.
  const int64_t inputs = larger(limits->max_rows * cols, 4 * (int64_t)limits->max_head_dim);
  b->x = room(inputs, 1, sizeof(float));
  b->w = room(cols, 1, sizeof(float));
  b->gate = room(limits->max_expert_width, 1, sizeof(float));
  b->up = room(limits->max_expert_width, 1, sizeof(float));
  b->y = room(cols, 1, sizeof(float));
  b->sum = room(cols, 1, sizeof(float));
  b->q = room(limits->max_heads, limits->max_head_dim, sizeof(float));
  b->key = room(limits->max_head_dim, 1, sizeof(float));
  b->per_head = room(2, limits->max_heads, sizeof(float));
  b->acc = room(larger(limits->max_heads, 1), limits->max_head_dim, sizeof(double));
  b->scores = room(larger(limits->max_positions / 4 + 1, limits->max_experts), 1, sizeof(float));
  if (b->x == NULL || b->w == NULL || b->gate == NULL || b->up == NULL || b->y == NULL ||
      b->sum == NULL || b->q == NULL || b->key == NULL || b->per_head == NULL || b->acc == NULL ||
      b->scores == NULL) {
    return fail(error, FATHOM_OUT_OF_MEMORY, "no scratch for steps of %d rows of %d values",
                limits->max_rows, limits->max_cols);
  }
  return FATHOM_OK;
}

static int64_t num_inexact_entries(FathomBackend* b) { return b->inexact_entries; }

const FathomBackendTable fathom_backend_table = {
    .major = FATHOM_PLUGIN_MAJOR,
    .minor = FATHOM_PLUGIN_MINOR,
    .struct_size = sizeof(FathomBackendTable),
    .name = "example",
    .numerics = 1u << FATHOM_OFFICIAL | 1u << FATHOM_EXACT,
    .encodings = 1u << FATHOM_ENTRY_F32 | 1u << FATHOM_ENTRY_E4M3_ROPE | 1u << FATHOM_ENTRY_E2M1 |
                 1u << FATHOM_ENTRY_BF16_ROPE | 1u << FATHOM_ENTRY_BF16 |
                 1u << FATHOM_ENTRY_E4M3_SCALED,
    .host_readable = 1,
    .features = 1u << FATHOM_FEATURE_E4M3_HEADS,
    .create = create,
    .destroy = destroy,
    .prepare = prepare,
    .num_inexact_entries = num_inexact_entries,
    .allocate = example_allocate,
    .free = example_free,
    .copy_in = example_copy,
    .copy_out = example_copy,
    .copy_within = example_copy,
    .memory_state = example_memory_state,
    .rope_table = example_rope_table,
    .embed_expand = example_embed_expand,
    .hc_pre_norm = example_hc_pre_norm,
    .hc_post = example_hc_post,
    .rms_norm = example_rms_norm,
    .linear = example_linear,
    .q_norm_rope_kv_insert = example_q_norm_rope_kv_insert,
    .compress_insert = example_compress_insert,
    .indexer_topk = example_indexer_topk,
    .sparse_attention = example_sparse_attention,
    .inverse_rope_out = example_inverse_rope_out,
    .route = example_route,
    .moe = example_moe,
    .head = example_head,
};
