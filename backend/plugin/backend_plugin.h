// The interface between fathom and a backend in a shared library (`--backend-plugin lib.so`): one
// table of plain C functions that the library exports. C11 or C++, nothing else of fathom's.
// docs/backend-plugins.md is the guide; examples/backend_plugin is a whole one.
//
// What an operation computes is said by the contract of its name, backend/ops/<operation>.h in
// fathom's sources; here are its operands. A tensor's, weight's or page's address points into the
// backend's memory (`allocate`; or anywhere in the process's where `host_readable` is set). All
// other pointers are the host's memory and end with the call. Operands are checked before a
// function sees them: shapes agree with each other and with the limits, indices are in range,
// blocks are there. Tensors are row-major without gaps.
//
// One backend's functions are called by one thread at a time. Functions return FATHOM_OK, or a code
// and a message; nothing may be thrown or longjmp'd through them. An operation may return before
// its work is done if `synchronize` waits for it; operations and copies take effect in the order of
// their calls.
#pragma once

#include <stdint.h>

// NOLINTBEGIN(readability-identifier-naming): names as C has them.
#ifdef __cplusplus
extern "C" {
#endif

// A major version is another layout: both sides need the same one. A minor version adds to the ends
// of structs that begin with their size, or takes a field that was reserved, so a host takes
// plug-ins of its own minor version and older ones.
#define FATHOM_PLUGIN_MAJOR 1
#define FATHOM_PLUGIN_MINOR 1

#define FATHOM_PLUGIN_EXPORT __attribute__((visibility("default")))

typedef int32_t FathomStatus;
enum {
  FATHOM_OK = 0,
  FATHOM_INVALID_ARGUMENT = 1,  // the request's fault, or the option's
  FATHOM_OUT_OF_MEMORY = 2,
  FATHOM_DATA_LOSS = 3,      // a damaged file or value
  FATHOM_UNIMPLEMENTED = 4,  // valid, but this backend lacks it
  FATHOM_UNAVAILABLE = 5,    // no device, no driver, busy
  FATHOM_INTERNAL = 6,
};

// Why a call failed: what was found, what was expected, where. ASCII, ends with a NUL; empty at
// first.
#define FATHOM_MESSAGE_BYTES 512
typedef struct FathomError {
  char message[FATHOM_MESSAGE_BYTES];
} FathomError;

// How to compute: official numerics round where the official inference code does, exact ones are
// fp32 throughout and round nothing.
enum { FATHOM_OFFICIAL = 0, FATHOM_EXACT = 1 };

// Tensors; `data` is null for an absent one. Dimensions behind `rank` are 1.
typedef struct FathomF32 {
  float* data;
  int64_t shape[4];
  int64_t rank;
} FathomF32;
typedef struct FathomConstF32 {
  const float* data;
  int64_t shape[4];
  int64_t rank;
} FathomConstF32;
typedef struct FathomI32 {
  int32_t* data;
  int64_t shape[4];
  int64_t rank;
} FathomI32;
typedef struct FathomConstI32 {
  const int32_t* data;
  int64_t shape[4];
  int64_t rank;
} FathomConstI32;
typedef struct FathomConstI64 {
  const int64_t* data;
  int64_t shape[4];
  int64_t rank;
} FathomConstI64;

// Formats of weights. Scales are ue8m0 bytes: 2^(byte - 127).
enum {
  FATHOM_F8E4M3 = 0,  // [rows, cols] codes; a scale per 128 x 128, [ceil(rows/128), ceil(cols/128)]
  FATHOM_E2M1 = 1,    // [rows, cols/2] pairs, even column in the low nibble; [rows, cols/32] scales
  FATHOM_BF16 = 2,    // no scales
  FATHOM_F32 = 3,     // no scales
};

// A matrix as stored, row-major [rows, cols]; y = W x. `data` is null for an absent one.
typedef struct FathomWeight {
  const void* data;
  const uint8_t* scale;
  int32_t rows;
  int32_t cols;
  int32_t dtype;
  int32_t reserved;  // 0
} FathomWeight;

typedef struct FathomExpert {
  FathomWeight w1, w2, w3;  // gate [I, D], down [D, I], up [I, D]
} FathomExpert;

// The stored things of a model, and the classes whose block tables they use.
enum {
  FATHOM_SWA_KV = 0,
  FATHOM_C4_KV = 1,
  FATHOM_C128_KV = 2,
  FATHOM_C4_INDEX_KEYS = 3,
  FATHOM_C4_STATE = 4,
  FATHOM_C128_STATE = 5,
  FATHOM_C4_INDEX_STATE = 6,
  FATHOM_NUM_KINDS = 7,
};
enum {
  FATHOM_CLASS_FULL = 0,
  FATHOM_CLASS_SWA = 1,
  FATHOM_CLASS_STATE4 = 2,
  FATHOM_CLASS_STATE128 = 3,
  FATHOM_NUM_CLASSES = 4,
};
static inline int32_t fathom_class_of(int32_t kind) {
  switch (kind) {
    case FATHOM_SWA_KV:
      return FATHOM_CLASS_SWA;
    case FATHOM_C4_STATE:
    case FATHOM_C4_INDEX_STATE:
      return FATHOM_CLASS_STATE4;
    case FATHOM_C128_STATE:
      return FATHOM_CLASS_STATE128;
    default:
      return FATHOM_CLASS_FULL;
  }
}

// How an entry is stored; byte for byte in docs/cache_pages.md. The first is of exact numerics and
// of states. Which of the others a cache uses is the user's choice and changes no result.
enum {
  FATHOM_ENTRY_F32 = 0,
  FATHOM_ENTRY_E4M3_ROPE = 1,
  FATHOM_ENTRY_E2M1 = 2,
  FATHOM_ENTRY_BF16_ROPE = 3,
  FATHOM_ENTRY_BF16 = 4,
  FATHOM_ENTRY_E4M3_SCALED = 5,
};

// The pages of one layer and kind. Page number p begins at base + p * block_stride bytes and has
// the values of all its entries, then their scales. `base` is null for an absent kind.
typedef struct FathomPages {
  void* base;
  int64_t block_stride;
  int32_t encoding;
  int32_t dim;       // values of an entry
  int32_t rope_dim;  // of the encodings with a rotated part
  int32_t entries_per_page;
} FathomPages;

// Entry j of a sequence is row j % entries_per_page of the page whose number is
// blocks[j / entries_per_page - first], which is negative where there is none.
typedef struct FathomBlockTable {
  const int32_t* blocks;
  int64_t num_blocks;
  int64_t first;
} FathomBlockTable;

// Rows [first_row, first_row + num_rows) of the step are a sequence's tokens from position `start`
// on.
typedef struct FathomSequenceRows {
  int32_t first_row;
  int32_t num_rows;
  int32_t start;
} FathomSequenceRows;

// What one forward pass computes. All of it is the host's memory, but for what pages point at.
// A plan given to begin_step keeps its address and content until the next begin_step: operations
// that get that address may use what was copied of it. Any other plan is new at each call.
typedef struct FathomStepPlan {
  uint64_t struct_size;
  const int32_t* token_ids;  // [num_rows]
  const int32_t* positions;  // [num_rows]
  int64_t num_rows;
  const FathomSequenceRows* sequences;
  int64_t num_sequences;
  const FathomBlockTable* tables[FATHOM_NUM_CLASSES];  // [num_sequences] each, or null
  const FathomPages* pages;                            // [num_layers][FATHOM_NUM_KINDS]
  int64_t num_layers;
  const int32_t* logits_rows;  // ascending
  int64_t num_logits_rows;
} FathomStepPlan;

// Operands of the operations, in the order of a forward pass. n is the number of the step's rows;
// sizes in brackets are those of the tensor; what an operation writes is said.

typedef struct FathomRopeTableArgs {
  uint64_t struct_size;
  const int32_t* positions;  // [num_positions]
  int64_t num_positions;
  FathomConstF32 frequencies;  // [rope_dim / 2]
  FathomF32 cos_sin;           // [num_positions, rope_dim / 2, 2], written
} FathomRopeTableArgs;

typedef struct FathomEmbedExpandArgs {
  uint64_t struct_size;
  const int32_t* token_ids;  // [num_token_ids]
  int64_t num_token_ids;
  FathomWeight table;  // bf16 [vocab, D]
  FathomF32 hc;        // [num_token_ids, hc_mult, D], written
} FathomEmbedExpandArgs;

typedef struct FathomHcPreNormArgs {
  uint64_t struct_size;
  FathomConstF32 hc;           // [n, hc_mult, D]; hc_mult is at most 8
  FathomConstF32 fn;           // [(2 + hc_mult) * hc_mult, hc_mult * D]
  FathomConstF32 base;         // [(2 + hc_mult) * hc_mult]
  FathomConstF32 scale;        // [3]
  FathomConstF32 norm_weight;  // [D]
  FathomF32 x;                 // [n, D], written
  FathomF32 post;              // [n, hc_mult], written
  FathomF32 comb;              // [n, hc_mult, hc_mult], written
  float norm_eps;
  float hc_eps;
  int32_t sinkhorn_iters;
  int32_t reserved;
} FathomHcPreNormArgs;

typedef struct FathomHcPostArgs {
  uint64_t struct_size;
  FathomConstF32 out;   // [n, D]
  FathomConstF32 post;  // [n, hc_mult]
  FathomConstF32 comb;  // [n, hc_mult, hc_mult]
  FathomF32 hc;         // [n, hc_mult, D], read and written
} FathomHcPostArgs;

typedef struct FathomRmsNormArgs {
  uint64_t struct_size;
  FathomConstF32 x;       // [n, D]
  FathomConstF32 weight;  // [D]
  FathomF32 out;          // [n, D], written; may be x
  float eps;
  int32_t reserved;
} FathomRmsNormArgs;

typedef struct FathomLinearArgs {
  uint64_t struct_size;
  FathomConstF32 x;     // [n, K]
  FathomWeight first;   // [N, K]
  FathomWeight second;  // [N2, K], or absent
  FathomF32 first_out;  // [n, N], written
  FathomF32 second_out;
  int32_t round_output;  // to bf16, in official numerics
  int32_t reserved;
} FathomLinearArgs;

typedef struct FathomQNormRopeKvInsertArgs {
  uint64_t struct_size;
  FathomF32 q;                    // [n, H, d], read and written
  FathomConstF32 kv;              // [n, d]
  FathomConstF32 kv_norm_weight;  // [d]
  FathomConstF32 cos_sin;         // [n, rope_dim / 2, 2]
  const FathomStepPlan* plan;
  FathomPages swa;    // written where there are blocks
  FathomF32 step_kv;  // [n, d], written
  float norm_eps;
  int32_t reserved;
} FathomQNormRopeKvInsertArgs;

typedef struct FathomCompressInsertArgs {
  uint64_t struct_size;
  FathomConstF32 kv_rows;         // [n, coff * width]; coff is 2 when ratio is 4, else 1
  FathomConstF32 score_rows;      // the same
  FathomConstF32 ape;             // [ratio, coff * width]
  FathomConstF32 norm_weight;     // [width]
  FathomConstF32 anchor_cos_sin;  // [entries that end in this step, rope_dim / 2, 2]
  const FathomStepPlan* plan;
  FathomPages state;  // fp32; read below the step's rows, written where there are blocks
  FathomPages out;    // written, one entry per window that ends
  float norm_eps;
  int32_t ratio;       // 4 or 128
  int32_t index_side;  // entries are index keys
  int32_t state_kind;
  int32_t out_kind;
  int32_t reserved;
} FathomCompressInsertArgs;

typedef struct FathomIndexerTopkArgs {
  uint64_t struct_size;
  FathomConstF32 q;             // [n, Hi, di]
  FathomConstF32 head_weights;  // [n, Hi]
  FathomConstF32 cos_sin;       // [n, rope_dim / 2, 2]
  const FathomStepPlan* plan;
  FathomPages keys;
  FathomI32 entries;      // [n, topk], written: ascending, the rest -1
  FathomI32 num_entries;  // [n], written
  int32_t topk;
  int32_t reserved;
} FathomIndexerTopkArgs;

typedef struct FathomSparseAttentionArgs {
  uint64_t struct_size;
  FathomConstF32 q;        // [n, H, d]
  FathomConstF32 step_kv;  // [n, d]
  const FathomStepPlan* plan;
  FathomPages swa;             // read below the step's rows
  FathomPages compressed;      // absent with ratio 0
  FathomConstI32 entries;      // [n, topk], or absent: all that are visible
  FathomConstI32 num_entries;  // [n], with `entries`
  FathomConstF32 sink;         // [H]
  FathomF32 out;               // [n, H, d], written
  float scale;
  int32_t window;
  int32_t ratio;  // 0, 4 or 128
  int32_t compressed_kind;
} FathomSparseAttentionArgs;

typedef struct FathomInverseRopeOutArgs {
  uint64_t struct_size;
  FathomF32 o;             // [n, H, d], read; may be overwritten
  FathomConstF32 cos_sin;  // [n, rope_dim / 2, 2]
  FathomWeight wo_a;       // [groups * rank, H * d / groups]
  FathomF32 out;           // [n, groups * rank], written
  int32_t groups;
  // Round the rotated heads to e4m3 in front of the product, as `linear` does its input. Only with
  // FATHOM_FEATURE_E4M3_HEADS, official numerics, and a wo_a in fp8 or fp4. 0 in version 1.0.
  int32_t quantise_input;
} FathomInverseRopeOutArgs;

enum { FATHOM_SQRT_SOFTPLUS = 0, FATHOM_SIGMOID = 1, FATHOM_SOFTMAX = 2 };

typedef struct FathomRouteArgs {
  uint64_t struct_size;
  FathomConstF32 x;           // [n, D]
  FathomWeight gate;          // [E, D]
  FathomConstF32 bias;        // [E]; absent for hash layers
  FathomConstI64 hash_table;  // [vocab, K]; absent for scored layers
  const int32_t* token_ids;   // [num_token_ids]; n with a hash table
  int64_t num_token_ids;
  FathomI32 experts;  // [n, K], written, ids below E; K is at most 32
  FathomF32 weights;  // [n, K], written
  float scale;
  int32_t scoring;
} FathomRouteArgs;

typedef struct FathomMoeArgs {
  uint64_t struct_size;
  FathomConstF32 x;            // [n, D]
  FathomConstI32 experts;      // [n, K], distinct ids in a row
  FathomConstF32 weights;      // [n, K]
  const FathomExpert* routed;  // [num_routed]
  int64_t num_routed;
  FathomExpert shared;
  FathomF32 out;  // [n, D], written
  float swiglu_limit;
  int32_t reserved;
} FathomMoeArgs;

typedef struct FathomHeadArgs {
  uint64_t struct_size;
  FathomConstF32 hc;    // [n, hc_mult, D]
  const int32_t* rows;  // [num_rows], rows of hc
  int64_t num_rows;
  FathomConstF32 fn;           // [hc_mult, hc_mult * D]
  FathomConstF32 base;         // [hc_mult]
  FathomConstF32 scale;        // [1]
  FathomConstF32 norm_weight;  // [D]
  FathomWeight head;           // [vocab, D]
  FathomF32 logits;            // [num_rows, vocab], written
  float norm_eps;
  float hc_eps;
} FathomHeadArgs;

// A plug-in's own; the host keeps the address and hands it back.
typedef struct FathomBackend FathomBackend;

typedef struct FathomCreateArgs {
  uint64_t struct_size;
  uint32_t host_major;
  uint32_t host_minor;
  int32_t numerics;  // one that the table names
  int32_t reserved;
} FathomCreateArgs;

// Largest sizes that operations will have.
typedef struct FathomLimits {
  uint64_t struct_size;
  int32_t max_rows;  // tokens of a step
  int32_t max_cols;  // inputs of any matrix
  int32_t max_experts;
  int32_t max_experts_per_token;
  int32_t max_expert_width;
  int32_t max_heads;
  int32_t max_head_dim;
  int32_t reserved;
  int64_t max_positions;  // of a sequence
} FathomLimits;

typedef struct FathomMemoryState {
  uint64_t struct_size;
  char name[64];  // "accelerator 0 (X100)"; ends with a NUL
  int64_t total_bytes;
  int64_t free_bytes;  // now; what other processes take counts
} FathomMemoryState;

// What an operation may be asked for that not every plug-in can do.
enum { FATHOM_FEATURE_E4M3_HEADS = 0 };  // inverse_rope_out with quantise_input

// The table. Functions are required but for those that may be null.
typedef struct FathomBackendTable {
  uint32_t major;  // FATHOM_PLUGIN_MAJOR
  uint32_t minor;  // FATHOM_PLUGIN_MINOR
  uint64_t struct_size;
  char name[32];          // of the backend, for messages; ends with a NUL
  uint32_t numerics;      // bits 1 << FATHOM_OFFICIAL, 1 << FATHOM_EXACT
  uint32_t encodings;     // bits 1 << FATHOM_ENTRY_..., those that operations read and write
  int32_t host_readable;  // 1: the host may read and write the memory, and operands may be anywhere
                          // in the process's; 0: only copies reach it
  uint32_t features;      // bits 1 << FATHOM_FEATURE_...; 0 in version 1.0

  // A backend at `*backend`. Called before weights are read: what the machine lacks is told here.
  FathomStatus (*create)(const FathomCreateArgs*, FathomBackend** backend, FathomError*);
  // After all its memory was freed.
  void (*destroy)(FathomBackend*);
  // Once, before the first operation: takes scratch memory, refuses sizes that it cannot have.
  FathomStatus (*prepare)(FathomBackend*, const FathomLimits*, FathomError*);
  // May be null. Told once of each dense matrix of the layers, before the first operation.
  FathomStatus (*add_weight)(FathomBackend*, const FathomWeight*, FathomError*);
  // May be null. See FathomStepPlan.
  FathomStatus (*begin_step)(FathomBackend*, const FathomStepPlan*, FathomError*);
  // May be null where operations return when they are done. Waits for all work; tells the first
  // error that came to light since the last call.
  FathomStatus (*synchronize)(FathomBackend*, FathomError*);
  // Entries whose encoding could not keep the official values (FATHOM_ENTRY_E4M3_SCALED with scales
  // more than 2^14 apart), of all work that is done.
  int64_t (*num_inexact_entries)(FathomBackend*);

  // Memory. Addresses are aligned to 256 bytes and the host adds offsets to them.
  FathomStatus (*allocate)(FathomBackend*, int64_t bytes, void** data, FathomError*);
  void (*free)(FathomBackend*, void* data);
  // Of the host's bytes; they may change when the call returns. After all operations called before.
  FathomStatus (*copy_in)(FathomBackend*, void* to, const void* from, int64_t bytes, FathomError*);
  FathomStatus (*copy_out)(FathomBackend*, void* to, const void* from, int64_t bytes, FathomError*);
  // Between places that do not overlap, in the order of operations.
  FathomStatus (*copy_within)(FathomBackend*, void* to, const void* from, int64_t bytes,
                              FathomError*);
  FathomStatus (*memory_state)(FathomBackend*, FathomMemoryState*, FathomError*);

  FathomStatus (*rope_table)(FathomBackend*, const FathomRopeTableArgs*, FathomError*);
  FathomStatus (*embed_expand)(FathomBackend*, const FathomEmbedExpandArgs*, FathomError*);
  FathomStatus (*hc_pre_norm)(FathomBackend*, const FathomHcPreNormArgs*, FathomError*);
  FathomStatus (*hc_post)(FathomBackend*, const FathomHcPostArgs*, FathomError*);
  FathomStatus (*rms_norm)(FathomBackend*, const FathomRmsNormArgs*, FathomError*);
  FathomStatus (*linear)(FathomBackend*, const FathomLinearArgs*, FathomError*);
  FathomStatus (*q_norm_rope_kv_insert)(FathomBackend*, const FathomQNormRopeKvInsertArgs*,
                                        FathomError*);
  FathomStatus (*compress_insert)(FathomBackend*, const FathomCompressInsertArgs*, FathomError*);
  FathomStatus (*indexer_topk)(FathomBackend*, const FathomIndexerTopkArgs*, FathomError*);
  FathomStatus (*sparse_attention)(FathomBackend*, const FathomSparseAttentionArgs*, FathomError*);
  FathomStatus (*inverse_rope_out)(FathomBackend*, const FathomInverseRopeOutArgs*, FathomError*);
  FathomStatus (*route)(FathomBackend*, const FathomRouteArgs*, FathomError*);
  FathomStatus (*moe)(FathomBackend*, const FathomMoeArgs*, FathomError*);
  FathomStatus (*head)(FathomBackend*, const FathomHeadArgs*, FathomError*);
} FathomBackendTable;

// What a plug-in defines, as an object and not a function, so that it can be judged before any of
// its code is called.
extern FATHOM_PLUGIN_EXPORT const FathomBackendTable fathom_backend_table;

#ifdef __cplusplus
}  // extern "C"
#endif
// NOLINTEND(readability-identifier-naming)
