// Operations that read the cache.
#include <math.h>
#include <string.h>

#include "example.h"

// Channels 32 at a time: in official numerics each of those products is exact, so that scores are
// the same on every machine.
static float grouped_dot(const float* a, const float* b, int64_t n) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; i += 32) sum += dot(a + i, b + i, n - i < 32 ? n - i : 32);
  return sum;
}

// Scores of a query's candidates.
static void score_keys(FathomBackend* b, const FathomIndexerTopkArgs* a, int64_t row,
                       const FathomBlockTable* table, int64_t num_keys) {
  const int64_t heads = a->q.shape[1], d = a->q.shape[2], pairs = a->cos_sin.shape[1];
  const double factor = 1.0 / sqrt((double)d) / sqrt((double)heads);
  memcpy(b->q, a->q.data + row * heads * d, (size_t)(heads * d) * sizeof(float));
  for (int64_t h = 0; h < heads; ++h) {
    rope_row(b, b->q + h * d, d, a->cos_sin.data + row * pairs * 2, pairs, 1.0f);
    hadamard_row(b, b->q + h * d, d);
    if (!b->exact) simulate_e2m1(b->q + h * d, d, 32);
    const float w = bf16(b, a->head_weights.data[row * heads + h]);
    b->per_head[h] = bf16(b, (float)(w * factor));
  }
  for (int64_t j = 0; j < num_keys; ++j) {
    load_entry(b, &a->keys, table, j, b->key);
    float score = 0.0f;
    for (int64_t h = 0; h < heads; ++h) {
      const float product = grouped_dot(b->q + h * d, b->key, d);
      score += b->per_head[h] * (product > 0.0f ? product : 0.0f);
    }
    b->scores[j] = score;
  }
}

// The k best of n > k scores, ascending by index; equal scores go to the smaller one.
static void choose_entries(const float* scores, int64_t n, int32_t* best, int64_t k) {
  int64_t num = 0;
  for (int64_t j = 0; j < n; ++j) {
    int64_t at = num < k ? num : k;
    while (at > 0 && scores[j] > scores[best[at - 1]]) --at;
    if (at == k) continue;
    if (num < k) ++num;
    memmove(best + at + 1, best + at, (size_t)(num - at - 1) * sizeof(*best));
    best[at] = (int32_t)j;
  }
  for (int64_t i = 1; i < k; ++i) {
    const int32_t entry = best[i];
    int64_t at = i;
    for (; at > 0 && best[at - 1] > entry; --at) best[at] = best[at - 1];
    best[at] = entry;
  }
}

FathomStatus example_indexer_topk(FathomBackend* b, const FathomIndexerTopkArgs* a,
                                  FathomError* error) {
  (void)error;
  const int64_t k = a->topk;
  for (int64_t s = 0; s < a->plan->num_sequences; ++s) {
    const FathomSequenceRows* rows = &a->plan->sequences[s];
    const FathomBlockTable* table = &a->plan->tables[FATHOM_CLASS_FULL][s];
    for (int64_t r = 0; r < rows->num_rows; ++r) {
      const int64_t i = rows->first_row + r;
      const int64_t visible = (rows->start + r + 1) / 4;
      const int64_t kept = visible < k ? visible : k;
      int32_t* entries = a->entries.data + i * k;
      if (visible > k) {
        score_keys(b, a, i, table, visible);
        choose_entries(b->scores, visible, entries, k);
      } else {
        for (int64_t j = 0; j < visible; ++j) entries[j] = (int32_t)j;
      }
      for (int64_t j = kept; j < k; ++j) entries[j] = -1;
      a->num_entries.data[i] = (int32_t)kept;
    }
  }
  return FATHOM_OK;
}

// What one query attends to: window entries first, then compressed ones, both ascending.
typedef struct Attended {
  const FathomSparseAttentionArgs* args;
  const FathomSequenceRows* rows;
  const FathomBlockTable* swa_table;
  const FathomBlockTable* compressed_table;
  const int32_t* entries;  // null: all
  int64_t window_begin;
  int64_t num_window;
  int64_t num_compressed;
} Attended;

static Attended attended_by(const FathomSparseAttentionArgs* a, int64_t s, int64_t r) {
  const FathomSequenceRows* rows = &a->plan->sequences[s];
  const int64_t i = rows->first_row + r, position = rows->start + r;
  Attended set = {a, rows, &a->plan->tables[FATHOM_CLASS_SWA][s], NULL, NULL, 0, 0, 0};
  set.window_begin = position - a->window + 1 > 0 ? position - a->window + 1 : 0;
  set.num_window = position + 1 - set.window_begin;
  if (a->compressed.base == NULL) return set;
  set.compressed_table = &a->plan->tables[fathom_class_of(a->compressed_kind)][s];
  if (a->entries.data == NULL) {
    set.num_compressed = (position + 1) / a->ratio;
  } else {
    set.entries = a->entries.data + i * a->entries.shape[1];
    set.num_compressed = a->num_entries.data[i];
  }
  return set;
}

// The n-th key, which is the n-th value too.
static const float* key_of(FathomBackend* b, const Attended* set, int64_t n) {
  const FathomSparseAttentionArgs* a = set->args;
  if (n >= set->num_window) {
    const int64_t c = n - set->num_window;
    load_entry(b, &a->compressed, set->compressed_table, set->entries == NULL ? c : set->entries[c],
               b->key);
    return b->key;
  }
  const int64_t position = set->window_begin + n;
  if (position >= set->rows->start) {
    const int64_t row = set->rows->first_row + position - set->rows->start;
    return a->step_kv.data + row * a->step_kv.shape[1];
  }
  load_entry(b, &a->swa, set->swa_table, position, b->key);
  return b->key;
}

// Three passes over the keys: the largest score of each head, the sum of exponentials, the weighted
// values. Scores are computed again in each, so that no memory depends on the number of keys.
static void attend(FathomBackend* b, const Attended* set, const float* q, float* out) {
  const FathomSparseAttentionArgs* a = set->args;
  const int64_t heads = a->q.shape[1], d = a->q.shape[2];
  const int64_t num_keys = set->num_window + set->num_compressed;
  float *max = b->per_head, *den = b->per_head + heads;
  for (int64_t h = 0; h < heads; ++h) max[h] = -INFINITY;
  for (int64_t n = 0; n < num_keys; ++n) {
    const float* key = key_of(b, set, n);
    for (int64_t h = 0; h < heads; ++h) {
      const float z = dot(q + h * d, key, d) * a->scale;
      max[h] = max[h] < z ? z : max[h];
    }
  }
  for (int64_t h = 0; h < heads; ++h) b->acc[h] = 0.0;
  for (int64_t n = 0; n < num_keys; ++n) {
    const float* key = key_of(b, set, n);
    for (int64_t h = 0; h < heads; ++h) {
      b->acc[h] += expf(dot(q + h * d, key, d) * a->scale - max[h]);
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    den[h] = (float)b->acc[h] + expf(a->sink.data[h] - max[h]);
  }
  for (int64_t c = 0; c < heads * d; ++c) b->acc[c] = 0.0;
  for (int64_t n = 0; n < num_keys; ++n) {
    const float* key = key_of(b, set, n);
    for (int64_t h = 0; h < heads; ++h) {
      const double weight = expf(dot(q + h * d, key, d) * a->scale - max[h]) / den[h];
      for (int64_t c = 0; c < d; ++c) b->acc[h * d + c] += weight * (double)key[c];
    }
  }
  for (int64_t c = 0; c < heads * d; ++c) out[c] = bf16(b, (float)b->acc[c]);
}

FathomStatus example_sparse_attention(FathomBackend* b, const FathomSparseAttentionArgs* a,
                                      FathomError* error) {
  (void)error;
  const int64_t width = a->q.shape[1] * a->q.shape[2];
  for (int64_t s = 0; s < a->plan->num_sequences; ++s) {
    const FathomSequenceRows* rows = &a->plan->sequences[s];
    for (int64_t r = 0; r < rows->num_rows; ++r) {
      const Attended set = attended_by(a, s, r);
      const int64_t i = rows->first_row + r;
      attend(b, &set, a->q.data + i * width, a->out.data + i * width);
    }
  }
  return FATHOM_OK;
}
