// Steps over rows that become cache entries, one kernel each. Rows have below 2^31 pieces that
// threads take. Needs the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "backend/ops/q_norm_rope_kv_insert.h"
#include "backend/page_format.h"
#include "base/status.h"

namespace fathom::cuda {

// Rows of floats [n, width] in device memory.
struct EntryRows {
  float* data = nullptr;
  int64_t n = 0;
  int width = 0;
};

// Where the window's entry of each row goes; no page for rows that have none. kUnimplemented for
// what sequences of q_norm_rope_kv_insert refuse.
Result<std::vector<EntryRef>> WindowPlaces(const QNormRopeKvInsertArgs& args);

// out[i] = bf16(weight * bf16 RMS norm of x[i]); out has rows of the same width.
Status NormRows(const float* x, const float* weight, float eps, const EntryRows& out,
                cudaStream_t stream);

// Rotates the last 2 * pairs columns, in place; `share` rows in a row have the same rotation.
Status RotateRows(const EntryRows& rows, const float* cos_sin, int pairs, int share,
                  cudaStream_t stream);

// Hadamard transform of each row, in place.
Status TransformRows(const EntryRows& rows, cudaStream_t stream);

// Records [n][format.entry_bytes()]: the bytes of an entry's values, then those of its scales.
// kE4m3Rope, or kE2m1 for index keys. `values`, where it is given, gets what the codes stand for
// (kE4m3Rope only).
Status QuantiseRows(const EntryRows& rows, const PageFormat& format, std::byte* records,
                    float* values, cudaStream_t stream);

// Copies records to their pages; those without a page are left out.
Status InsertRecords(const std::byte* records, int64_t n, const PageView& pages,
                     const EntryRef* places, cudaStream_t stream);

}  // namespace fathom::cuda
