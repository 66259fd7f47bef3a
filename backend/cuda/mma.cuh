// The matrix unit's instructions that the kernels use, and copies to shared memory beside
// computation. Hopper has them, and what comes after it; wgmma would be Hopper's alone.
#pragma once

#include <cstdint>

namespace fathom::cuda {

// acc[16 x 8] += a[16 x 16] b[16 x 8], bf16 products, fp32 sums. With g = lane / 4, q = lane % 4:
// a[0], a[2]: row g, columns 2q, 2q + 1 and 2q + 8, 2q + 9; a[1], a[3]: row g + 8;
// b[0], b[1]: rows 2q, 2q + 1 and 2q + 8, 2q + 9 of column g;
// acc[0], acc[1]: row g, columns 2q, 2q + 1; acc[2], acc[3]: row g + 8.
// An element's sum depends on its row of a and column of b alone.
__device__ inline void MmaBf16(float* acc, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                               uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Two bf16 products, rounded once; subnormal ones too.
__device__ inline uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Four 8 x 8 matrices of 16-bit elements, transposed: lane l names row l % 8 of matrix l / 8 (16
// bytes of shared memory); out[m] gets elements (2q, g) and (2q + 1, g) of matrix m.
__device__ inline void LoadTransposed(uint32_t* out, const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// 16 bytes to shared memory, under way until WaitForCopies; zeros if not `valid`, from which
// nothing is read then.
__device__ inline void CopyAsync16(void* shared, const void* from, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
}
// Ends a group of copies.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last kPending groups of this thread have arrived.
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace fathom::cuda
