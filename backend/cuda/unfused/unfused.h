// What three fused operations of CudaBackend do, as a sequence of kernels that each take one step
// over memory; one of them also as a chain of operations on tensors, a kernel each: what fusing is
// measured against.
//
// The same bits as the fused ones, for the formats that official caches have. Indices (where rows
// and entries of a plan lie) are made once, at Make; a Run launches and returns. For bench and
// tests only. This header needs no CUDA.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/cuda/cuda_backend.h"

namespace fathom::cuda {

class Sequence {
 public:
  virtual ~Sequence() = default;
  // Launches the kernels on the backend's stream: results are there after its Synchronize.
  virtual Status Run() = 0;
  // Of a Run.
  [[nodiscard]] virtual int num_kernels() const = 0;
};

// All operands, pages and the backend, which is prepared, must outlive the sequence; plans need
// not. kUnimplemented for pages other than kE4m3Rope (kE2m1 for index keys), head sizes that are no
// multiple of four and rows of no sequence.

// Squares of q; its scaling; its rotation; norm of kv; its rotation; codes and scales; insertion.
Result<std::unique_ptr<Sequence>> MakeUnfused(CudaBackend& backend,
                                              const QNormRopeKvInsertArgs& args);

// The same, one kernel for each operation on a tensor (square, mean, + eps, ..: the .cu file has
// the list), as a framework without a compiler would launch it. The same bits where kv holds bf16
// values, as wkv's output does: squares of those are exact. Has room for as many floats as q has.
Result<std::unique_ptr<Sequence>> MakeElementwise(CudaBackend& backend,
                                                  const QNormRopeKvInsertArgs& args);

// Scores with ape; rows stored; softmax and weighted sum; norm; rotation; for index keys Hadamard
// transform; codes and scales; insertion. The last ones only where an entry ends.
Result<std::unique_ptr<Sequence>> MakeUnfused(CudaBackend& backend, const CompressInsertArgs& args);

// What InverseRopeOut does in front of its product, which is the same either way: `o` becomes
// e4m3 values, packed for the product to `packed`, n rows of them in the backend's memory.
// Rotation; rounding to bf16; scales; codes, packed. `o` is rotated in place.
Result<std::unique_ptr<Sequence>> MakeUnfusedHeads(CudaBackend& backend,
                                                   const InverseRopeOutArgs& args,
                                                   uint16_t* packed);
// The kernel that InverseRopeOut launches for it. kUnimplemented where it takes several.
Result<std::unique_ptr<Sequence>> MakeFusedHeads(CudaBackend& backend,
                                                 const InverseRopeOutArgs& args, uint16_t* packed);

}  // namespace fathom::cuda
