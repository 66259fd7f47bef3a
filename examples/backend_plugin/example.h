// A backend of scalar C behind fathom's table of operations, written to be read.
//
// One function per operation, as its contract (backend/ops/<operation>.h in fathom's sources) says
// it; any geometry, official and exact numerics. Sums of products are taken in double and rounded
// to fp32 once. Scratch is taken in `prepare`; operations allocate nothing, and are done when they
// return.
#pragma once

#include <fathom/backend_plugin.h>
#include <stddef.h>

struct FathomBackend {
  int exact;  // numerics: nothing is rounded
  FathomLimits limits;
  int64_t memory_bytes;     // lent to the host
  int64_t inexact_entries;  // since create
  float e4m3[256];          // values of the codes
  float* x;                 // [max_rows, max_cols]: inputs as a matrix takes them
  float* w;                 // [max_cols]: a matrix's row
  float *gate, *up;         // [max_expert_width]
  float *y, *sum;           // [max_cols]
  float* q;                 // [max_heads, max_head_dim]: an index query
  float* key;               // [max_head_dim]
  float* per_head;          // [2, max_heads]
  double* acc;              // [max_heads, max_head_dim]
  float* scores;            // [max_positions / 4 + 1]
};

// Fails with a message in printf's form.
FathomStatus fail(FathomError* error, FathomStatus status, const char* format, ...)
    __attribute__((format(printf, 3, 4)));

// formats.c: numbers.
float bf16_to_float(uint16_t bits);
uint16_t float_to_bf16(float x);
float round_to_bf16(float x);
// A bf16 tensor of the official code: rounded in official numerics only.
float bf16(const FathomBackend* b, float x);
uint8_t float_to_e4m3(float x);
uint8_t float_to_e2m1(float x);  // low nibble
extern const float e2m1_values[16];
float ue8m0_to_float(unsigned byte);
// One group of n values to codes; returns the scale byte.
uint8_t quantize_e4m3(const float* x, int64_t n, uint8_t* codes);
uint8_t quantize_e2m1(const float* x, int64_t n, uint8_t* packed);  // n / 2 bytes
// The values that those codes stand for, in place, in groups (of at most 128) along x.
void simulate_e4m3(const FathomBackend* b, float* x, int64_t n, int64_t group);
void simulate_e2m1(float* x, int64_t n, int64_t group);

// rows.c: pieces of several operations.
float dot(const float* a, const float* b, int64_t n);
float sigmoid(float z);
// 1 / sqrt(mean(x^2) + eps).
float inverse_rms(const float* x, int64_t n, float eps);
// out may be x.
void rms_norm_row(const FathomBackend* b, const float* x, const float* weight, int64_t n, float eps,
                  float* out);
// Rotates the last 2 * pairs of n channels; sign -1 rotates back.
void rope_row(const FathomBackend* b, float* x, int64_t n, const float* cos_sin, int64_t pairs,
              float sign);
// Orthonormal Walsh-Hadamard transform in Sylvester order, n a power of two.
void hadamard_row(FathomBackend* b, float* x, int64_t n);

// matrices.c: y = W x.
void weight_row(const FathomBackend* b, const FathomWeight* weight, int64_t row, float* out);
// Rounds n inputs as the weight's format takes them.
void quantize_input(const FathomBackend* b, const FathomWeight* weight, float* x, int64_t n);
// x is [rows, weight->cols], already rounded; out is [rows, weight->rows].
void multiply(FathomBackend* b, const float* x, int64_t rows, const FathomWeight* weight, int round,
              float* out);

// entries.c: cache pages.
int has_block(const FathomPages* pages, const FathomBlockTable* table, int64_t entry);
// For entries that have a block. A store counts entries that lose something.
void store_entry(FathomBackend* b, const FathomPages* pages, const FathomBlockTable* table,
                 int64_t entry, const float* values);
void load_entry(const FathomBackend* b, const FathomPages* pages, const FathomBlockTable* table,
                int64_t entry, float* values);
// The values that load_entry would give for stored ones; for KV.
void round_kv(const FathomBackend* b, const FathomPages* pages, float* values);

// memory.c
FathomStatus example_allocate(FathomBackend*, int64_t bytes, void** data, FathomError*);
void example_free(FathomBackend*, void* data);
FathomStatus example_copy(FathomBackend*, void* to, const void* from, int64_t bytes, FathomError*);
FathomStatus example_memory_state(FathomBackend*, FathomMemoryState*, FathomError*);

// The operations.
FathomStatus example_rope_table(FathomBackend*, const FathomRopeTableArgs*, FathomError*);
FathomStatus example_embed_expand(FathomBackend*, const FathomEmbedExpandArgs*, FathomError*);
FathomStatus example_hc_pre_norm(FathomBackend*, const FathomHcPreNormArgs*, FathomError*);
FathomStatus example_hc_post(FathomBackend*, const FathomHcPostArgs*, FathomError*);
FathomStatus example_rms_norm(FathomBackend*, const FathomRmsNormArgs*, FathomError*);
FathomStatus example_linear(FathomBackend*, const FathomLinearArgs*, FathomError*);
FathomStatus example_q_norm_rope_kv_insert(FathomBackend*, const FathomQNormRopeKvInsertArgs*,
                                           FathomError*);
FathomStatus example_compress_insert(FathomBackend*, const FathomCompressInsertArgs*, FathomError*);
FathomStatus example_indexer_topk(FathomBackend*, const FathomIndexerTopkArgs*, FathomError*);
FathomStatus example_sparse_attention(FathomBackend*, const FathomSparseAttentionArgs*,
                                      FathomError*);
FathomStatus example_inverse_rope_out(FathomBackend*, const FathomInverseRopeOutArgs*,
                                      FathomError*);
FathomStatus example_route(FathomBackend*, const FathomRouteArgs*, FathomError*);
FathomStatus example_moe(FathomBackend*, const FathomMoeArgs*, FathomError*);
FathomStatus example_head(FathomBackend*, const FathomHeadArgs*, FathomError*);
