// The matrix unit's instructions for four warps together. Hopper's alone: another architecture
// needs a file of its own in this one's place.
//
// On this hardware an element's sum has the bits of MmaBf16's (mma.cuh), which the tests hold it
// to: products with many inputs may take these, those with few the others.
#pragma once

#include <cstdint>

namespace fathom::cuda {

// Warps of a group: those of a block whose numbers begin at a multiple of it.
inline constexpr int kGroupWarps = 4;

// Inputs in shared memory as the unit wants them: of 8 columns of 8 inputs, one input's columns (16
// bytes) after another's; kTiles such pieces follow each other, then those of the next 8 columns.
template <int kTiles>
__device__ inline uint64_t WideInputs(const void* b) {
  constexpr uint64_t kNextColumns = kTiles * 128 / 16;
  constexpr uint64_t kNextInputs = 128 / 16;
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(b));
  return (address & 0x3FFFFu) >> 4 | kNextColumns << 16 | kNextInputs << 32;
}

// acc[t] += a[16 x 16] b[16 x 8] for the inputs 8 t .. 8 t + 7, t < kTiles: all warps of a group
// have rows of their own in `a` and the same inputs `b`, 16 columns of them. Operands as in
// MmaBf16. Under way until WideWait; neither `acc` nor what `a` holds may be touched before.
template <int kTiles>
__device__ __forceinline__ void MmaWide(float (*acc)[4], const uint32_t* a, const void* b);

template <>
__device__ __forceinline__ void MmaWide<2>(float (*acc)[4], const uint32_t* a, const void* b) {
  const uint64_t inputs = WideInputs<2>(b);
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}"
      ", {%8, %9, %10, %11}, %12, add, 1, 1, 0;\n}\n"
      : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]),
        "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs));
}

template <>
__device__ __forceinline__ void MmaWide<4>(float (*acc)[4], const uint32_t* a, const void* b) {
  const uint64_t inputs = WideInputs<4>(b);
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
      "%15}"
      ", {%16, %17, %18, %19}, %20, add, 1, 1, 0;\n}\n"
      : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]),
        "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]), "+f"(acc[2][0]), "+f"(acc[2][1]),
        "+f"(acc[2][2]), "+f"(acc[2][3]), "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]),
        "+f"(acc[3][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs));
}

template <>
__device__ __forceinline__ void MmaWide<8>(float (*acc)[4], const uint32_t* a, const void* b) {
  const uint64_t inputs = WideInputs<8>(b);
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
      "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
      "%29, %30, %31}"
      ", {%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}\n"
      : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]),
        "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]), "+f"(acc[2][0]), "+f"(acc[2][1]),
        "+f"(acc[2][2]), "+f"(acc[2][3]), "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]),
        "+f"(acc[3][3]), "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
        "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]), "+f"(acc[6][0]),
        "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]), "+f"(acc[7][0]), "+f"(acc[7][1]),
        "+f"(acc[7][2]), "+f"(acc[7][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs));
}

template <>
__device__ __forceinline__ void MmaWide<16>(float (*acc)[4], const uint32_t* a, const void* b) {
  const uint64_t inputs = WideInputs<16>(b);
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
      "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
      "%29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, "
      "%43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63}"
      ", {%64, %65, %66, %67}, %68, add, 1, 1, 0;\n}\n"
      : "+f"(acc[0][0]), "+f"(acc[0][1]), "+f"(acc[0][2]), "+f"(acc[0][3]), "+f"(acc[1][0]),
        "+f"(acc[1][1]), "+f"(acc[1][2]), "+f"(acc[1][3]), "+f"(acc[2][0]), "+f"(acc[2][1]),
        "+f"(acc[2][2]), "+f"(acc[2][3]), "+f"(acc[3][0]), "+f"(acc[3][1]), "+f"(acc[3][2]),
        "+f"(acc[3][3]), "+f"(acc[4][0]), "+f"(acc[4][1]), "+f"(acc[4][2]), "+f"(acc[4][3]),
        "+f"(acc[5][0]), "+f"(acc[5][1]), "+f"(acc[5][2]), "+f"(acc[5][3]), "+f"(acc[6][0]),
        "+f"(acc[6][1]), "+f"(acc[6][2]), "+f"(acc[6][3]), "+f"(acc[7][0]), "+f"(acc[7][1]),
        "+f"(acc[7][2]), "+f"(acc[7][3]), "+f"(acc[8][0]), "+f"(acc[8][1]), "+f"(acc[8][2]),
        "+f"(acc[8][3]), "+f"(acc[9][0]), "+f"(acc[9][1]), "+f"(acc[9][2]), "+f"(acc[9][3]),
        "+f"(acc[10][0]), "+f"(acc[10][1]), "+f"(acc[10][2]), "+f"(acc[10][3]), "+f"(acc[11][0]),
        "+f"(acc[11][1]), "+f"(acc[11][2]), "+f"(acc[11][3]), "+f"(acc[12][0]), "+f"(acc[12][1]),
        "+f"(acc[12][2]), "+f"(acc[12][3]), "+f"(acc[13][0]), "+f"(acc[13][1]), "+f"(acc[13][2]),
        "+f"(acc[13][3]), "+f"(acc[14][0]), "+f"(acc[14][1]), "+f"(acc[14][2]), "+f"(acc[14][3]),
        "+f"(acc[15][0]), "+f"(acc[15][1]), "+f"(acc[15][2]), "+f"(acc[15][3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(inputs));
}

// Before the first MmaWide, and after others have touched its registers.
__device__ __forceinline__ void WideBegin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends a batch of MmaWide.
__device__ __forceinline__ void WideCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all but the last kPending batches are done.
template <int kPending>
__device__ __forceinline__ void WideWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// This thread's writes to shared memory are seen by MmaWide, behind a barrier.
__device__ __forceinline__ void ShowInputs() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace fathom::cuda
