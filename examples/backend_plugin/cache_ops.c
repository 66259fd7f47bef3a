// Operations that write cache entries.
#include <math.h>

#include "example.h"

// The official per-head norm: every step of it rounds to bf16.
static void query_norm(const FathomBackend* b, float* q, int64_t n, float eps) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += bf16(b, q[i] * q[i]);
  const float mean = bf16(b, (float)(sum / (double)n));
  const float inverse = bf16(b, 1.0f / sqrtf(bf16(b, mean + eps)));
  for (int64_t i = 0; i < n; ++i) q[i] = bf16(b, q[i] * inverse);
}

FathomStatus example_q_norm_rope_kv_insert(FathomBackend* b, const FathomQNormRopeKvInsertArgs* a,
                                           FathomError* error) {
  (void)error;
  const int64_t heads = a->q.shape[1], d = a->q.shape[2], pairs = a->cos_sin.shape[1];
  for (int64_t s = 0; s < a->plan->num_sequences; ++s) {
    const FathomSequenceRows* rows = &a->plan->sequences[s];
    const FathomBlockTable* table = &a->plan->tables[FATHOM_CLASS_SWA][s];
    for (int64_t r = 0; r < rows->num_rows; ++r) {
      const int64_t i = rows->first_row + r;
      const float* cos_sin = a->cos_sin.data + i * pairs * 2;
      for (int64_t h = 0; h < heads; ++h) {
        float* q = a->q.data + (i * heads + h) * d;
        query_norm(b, q, d, a->norm_eps);
        rope_row(b, q, d, cos_sin, pairs, 1.0f);
      }
      float* kv = a->step_kv.data + i * d;
      rms_norm_row(b, a->kv.data + i * d, a->kv_norm_weight.data, d, a->norm_eps, kv);
      rope_row(b, kv, d, cos_sin, pairs, 1.0f);
      // Stored before it is rounded: rounding again may choose another scale for the same values.
      const int64_t position = rows->start + r;
      if (has_block(&a->swa, table, position)) store_entry(b, &a->swa, table, position, kv);
      round_kv(b, &a->swa, kv);
    }
  }
  return FATHOM_OK;
}

// A row that a window pools: `ape` is null where the scores have it already.
typedef struct Item {
  const float *k, *score, *ape;
} Item;

static float score_of(const Item* item, int64_t c) {
  return item->ape == NULL ? item->score[c] : item->score[c] + item->ape[c];
}

// In double and rounded once, so that every backend stores the same entries.
static float exp_of(float x) { return (float)exp((double)x); }

// Softmax over the items' scores and weighted sum of their K values, each channel on its own.
static void pool(const Item* items, int num_items, int64_t width, float* out) {
  for (int64_t c = 0; c < width; ++c) {
    float max = -INFINITY, den = 0.0f, sum = 0.0f;
    for (int u = 0; u < num_items; ++u) max = fmaxf(max, score_of(&items[u], c));
    for (int u = 0; u < num_items; ++u) den += exp_of(score_of(&items[u], c) - max);
    for (int u = 0; u < num_items; ++u) {
      sum += items[u].k[c] * (exp_of(score_of(&items[u], c) - max) / den);
    }
    out[c] = sum;
  }
}

// The row of a position: of this step, or as an earlier one stored it, [K | S], in fp32.
static Item row_of(const FathomCompressInsertArgs* a, const FathomSequenceRows* rows,
                   const FathomBlockTable* table, int64_t position) {
  const int64_t row_width = a->kv_rows.shape[1];
  if (position >= rows->start) {
    const int64_t i = rows->first_row + position - rows->start;
    const Item item = {a->kv_rows.data + i * row_width, a->score_rows.data + i * row_width,
                       a->ape.data + position % a->ratio * row_width};
    return item;
  }
  const int64_t per_page = a->state.entries_per_page;
  const int64_t number = table->blocks[position / per_page - table->first];
  const float* page =
      (const float*)(const void*)((const char*)a->state.base + number * a->state.block_stride);
  const float* row = page + position % per_page * 2 * row_width;
  const Item item = {row, row + row_width, NULL};
  return item;
}

// Entry j of a sequence, before its norm.
static void pool_entry(FathomBackend* b, const FathomCompressInsertArgs* a,
                       const FathomSequenceRows* rows, const FathomBlockTable* table, int64_t j) {
  const int64_t row_width = a->kv_rows.shape[1], width = a->norm_weight.shape[0];
  Item items[128];
  int num_items = 0;
  // Ratio 4: the window before gives the first halves of its rows, the own one the second halves.
  // Entry 0 has none before it; leaving those items out is the same as scores of -inf.
  const int64_t before = a->ratio == 4 && j > 0 ? 4 : 0;
  for (int64_t p = a->ratio * j - before; p < a->ratio * (j + 1); ++p) {
    Item item = row_of(a, rows, table, p);
    const int64_t half = p < a->ratio * j ? 0 : row_width - width;
    item.k += half;
    item.score += half;
    if (item.ape != NULL) item.ape += half;
    items[num_items++] = item;
  }
  pool(items, num_items, width, b->key);
}

FathomStatus example_compress_insert(FathomBackend* b, const FathomCompressInsertArgs* a,
                                     FathomError* error) {
  (void)error;
  const int64_t row_width = a->kv_rows.shape[1], width = a->norm_weight.shape[0];
  const int64_t pairs = a->anchor_cos_sin.shape[1];
  const FathomBlockTable* state_tables = a->plan->tables[fathom_class_of(a->state_kind)];
  const FathomBlockTable* out_tables = a->plan->tables[fathom_class_of(a->out_kind)];
  const float* cos_sin = a->anchor_cos_sin.data;
  for (int64_t s = 0; s < a->plan->num_sequences; ++s) {
    const FathomSequenceRows* rows = &a->plan->sequences[s];
    const int64_t end = (int64_t)rows->start + rows->num_rows;
    for (int64_t p = rows->start; p < end; ++p) {
      if (!has_block(&a->state, &state_tables[s], p)) continue;
      const Item item = row_of(a, rows, &state_tables[s], p);
      for (int64_t c = 0; c < row_width; ++c) {
        b->x[c] = item.k[c];
        b->x[row_width + c] = score_of(&item, c);
      }
      store_entry(b, &a->state, &state_tables[s], p, b->x);
    }
    for (int64_t j = rows->start / a->ratio; j < end / a->ratio; ++j) {
      pool_entry(b, a, rows, &state_tables[s], j);
      for (int64_t c = 0; c < width; ++c) b->key[c] = bf16(b, b->key[c]);
      rms_norm_row(b, b->key, a->norm_weight.data, width, a->norm_eps, b->key);
      rope_row(b, b->key, width, cos_sin, pairs, 1.0f);
      if (a->index_side) hadamard_row(b, b->key, width);
      store_entry(b, &a->out, &out_tables[s], j, b->key);
      if (cos_sin != NULL) cos_sin += 2 * pairs;
    }
  }
  return FATHOM_OK;
}
