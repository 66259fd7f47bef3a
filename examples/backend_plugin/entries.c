// Cache entries; byte for byte in fathom's docs/cache_pages.md.
#include <math.h>
#include <string.h>

#include "example.h"

enum { kKvGroup = 64, kIndexGroup = 32 };
// The largest e2m1 value times 2^6 is 384, the last such product that e4m3 has.
enum { kE2m1InE4m3Shift = 6 };

int has_block(const FathomPages* pages, const FathomBlockTable* table, int64_t entry) {
  const int64_t index = entry / pages->entries_per_page - table->first;
  return entry >= 0 && index >= 0 && index < table->num_blocks && table->blocks[index] >= 0;
}

typedef struct Entry {
  uint8_t* values;
  uint8_t* scales;
  int64_t scale_bytes;
} Entry;

static Entry locate(const FathomPages* pages, const FathomBlockTable* table, int64_t entry) {
  const int64_t dim = pages->dim;
  int64_t value_bytes = 4 * dim, scale_bytes = 0;
  switch (pages->encoding) {
    case FATHOM_ENTRY_E4M3_ROPE:
      value_bytes = dim + pages->rope_dim;
      scale_bytes = ((dim - pages->rope_dim) / kKvGroup + 7) / 8 * 8;
      break;
    case FATHOM_ENTRY_E2M1:
      value_bytes = dim / 2;
      scale_bytes = dim / kIndexGroup;
      break;
    case FATHOM_ENTRY_BF16_ROPE:
    case FATHOM_ENTRY_BF16:
      value_bytes = 2 * dim;
      break;
    case FATHOM_ENTRY_E4M3_SCALED:
      value_bytes = dim;
      scale_bytes = 4;
      break;
    default:
      break;
  }
  const int64_t number = table->blocks[entry / pages->entries_per_page - table->first];
  const int64_t row = entry % pages->entries_per_page;
  uint8_t* page = (uint8_t*)pages->base + number * pages->block_stride;
  const Entry found = {page + row * value_bytes,
                       page + pages->entries_per_page * value_bytes + row * scale_bytes,
                       scale_bytes};
  return found;
}

static void put_bf16(uint8_t* to, float x) {
  const uint16_t bits = float_to_bf16(x);
  memcpy(to, &bits, sizeof(bits));
}

static float get_bf16(const uint8_t* from) {
  uint16_t bits;
  memcpy(&bits, from, sizeof(bits));
  return bf16_to_float(bits);
}

// The exponent byte of the largest scale that the groups of an index key have.
static int largest_scale(const float* values, int64_t dim) {
  uint8_t packed[kIndexGroup / 2];
  int largest = 1;
  for (int64_t i = 0; i < dim; i += kIndexGroup) {
    const int byte = quantize_e2m1(values + i, kIndexGroup, packed);
    largest = byte > largest ? byte : largest;
  }
  return largest;
}

static void store_scaled(FathomBackend* b, const Entry* to, const float* values, int64_t dim) {
  // Not below 2^-126: smaller fp32 scales are subnormal, and the smallest group scale is 2^-126.
  const int largest = largest_scale(values, dim) - kE2m1InE4m3Shift;
  const int byte = largest > 1 ? largest : 1;
  const float scale = ue8m0_to_float((unsigned)byte);
  memcpy(to->scales, &scale, sizeof(scale));
  int exact = 1;
  for (int64_t i = 0; i < dim; i += kIndexGroup) {
    float group[kIndexGroup];
    memcpy(group, values + i, sizeof(group));
    simulate_e2m1(group, kIndexGroup, kIndexGroup);
    for (int64_t j = 0; j < kIndexGroup; ++j) {
      to->values[i + j] = float_to_e4m3(ldexpf(group[j], 127 - byte));
      exact = exact && b->e4m3[to->values[i + j]] * scale == group[j];
    }
  }
  if (!exact) ++b->inexact_entries;
}

void store_entry(FathomBackend* b, const FathomPages* pages, const FathomBlockTable* table,
                 int64_t entry, const float* values) {
  const Entry to = locate(pages, table, entry);
  const int64_t dim = pages->dim, plain = dim - pages->rope_dim;
  switch (pages->encoding) {
    case FATHOM_ENTRY_E4M3_ROPE:
      memset(to.scales, 0, (size_t)to.scale_bytes);
      for (int64_t i = 0; i < plain; i += kKvGroup) {
        to.scales[i / kKvGroup] = quantize_e4m3(values + i, kKvGroup, to.values + i);
      }
      for (int64_t i = plain; i < dim; ++i)
        put_bf16(to.values + plain + 2 * (i - plain), values[i]);
      return;
    case FATHOM_ENTRY_E2M1:
      for (int64_t i = 0; i < dim; i += kIndexGroup) {
        to.scales[i / kIndexGroup] = quantize_e2m1(values + i, kIndexGroup, to.values + i / 2);
      }
      return;
    // Rounded values have few significant bits: bf16 holds them as they are.
    case FATHOM_ENTRY_BF16_ROPE:
      for (int64_t i = 0; i < plain; i += kKvGroup) {
        float group[kKvGroup];
        memcpy(group, values + i, sizeof(group));
        simulate_e4m3(b, group, kKvGroup, kKvGroup);
        for (int64_t j = 0; j < kKvGroup; ++j) put_bf16(to.values + 2 * (i + j), group[j]);
      }
      for (int64_t i = plain; i < dim; ++i) put_bf16(to.values + 2 * i, values[i]);
      return;
    case FATHOM_ENTRY_BF16:
      for (int64_t i = 0; i < dim; i += kIndexGroup) {
        float group[kIndexGroup];
        memcpy(group, values + i, sizeof(group));
        simulate_e2m1(group, kIndexGroup, kIndexGroup);
        for (int64_t j = 0; j < kIndexGroup; ++j) put_bf16(to.values + 2 * (i + j), group[j]);
      }
      return;
    case FATHOM_ENTRY_E4M3_SCALED:
      store_scaled(b, &to, values, dim);
      return;
    default:
      memcpy(to.values, values, (size_t)dim * sizeof(float));
  }
}

void load_entry(const FathomBackend* b, const FathomPages* pages, const FathomBlockTable* table,
                int64_t entry, float* values) {
  const Entry from = locate(pages, table, entry);
  const int64_t dim = pages->dim, plain = dim - pages->rope_dim;
  switch (pages->encoding) {
    case FATHOM_ENTRY_E4M3_ROPE:
      for (int64_t i = 0; i < plain; ++i) {
        values[i] = b->e4m3[from.values[i]] * ue8m0_to_float(from.scales[i / kKvGroup]);
      }
      for (int64_t i = plain; i < dim; ++i) {
        values[i] = get_bf16(from.values + plain + 2 * (i - plain));
      }
      return;
    case FATHOM_ENTRY_E2M1:
      for (int64_t i = 0; i < dim; ++i) {
        values[i] = e2m1_values[from.values[i / 2] >> (i % 2 * 4) & 15] *
                    ue8m0_to_float(from.scales[i / kIndexGroup]);
      }
      return;
    case FATHOM_ENTRY_BF16_ROPE:
    case FATHOM_ENTRY_BF16:
      for (int64_t i = 0; i < dim; ++i) values[i] = get_bf16(from.values + 2 * i);
      return;
    case FATHOM_ENTRY_E4M3_SCALED: {
      float scale;
      memcpy(&scale, from.scales, sizeof(scale));
      for (int64_t i = 0; i < dim; ++i) values[i] = b->e4m3[from.values[i]] * scale;
      return;
    }
    default:
      memcpy(values, from.values, (size_t)dim * sizeof(float));
  }
}

void round_kv(const FathomBackend* b, const FathomPages* pages, float* values) {
  if (pages->encoding == FATHOM_ENTRY_F32) return;
  const int64_t plain = pages->dim - pages->rope_dim;
  simulate_e4m3(b, values, plain, kKvGroup);
  for (int64_t i = plain; i < pages->dim; ++i) values[i] = round_to_bf16(values[i]);
}
