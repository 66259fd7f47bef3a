#include "bench/probes.h"

namespace fathom::bench {
namespace {

#if defined(__x86_64__)

constexpr int64_t kRounds = 20'000;
constexpr int64_t kAccumulators = 12;  // more than latency times rate of any of these instructions

// Twelve independent sums per round, over and over. The text is assembled whatever the flags of
// this file are; what may run is decided by FindProbe. All operands hold 0x3F803F80: 1.0 as bf16,
// almost 1.0 as fp32, and bytes that are not zero.
#define FATHOM_SUM(instruction, reg, n) instruction " %%" reg "12, %%" reg "13, %%" reg #n "\n\t"
#define FATHOM_FILL(reg, n) "vpbroadcastd %%xmm15, %%" reg #n "\n\t"
#define FATHOM_TWELVE(macro, ...)                                                             \
  macro(__VA_ARGS__, 0) macro(__VA_ARGS__, 1) macro(__VA_ARGS__, 2) macro(__VA_ARGS__, 3)     \
      macro(__VA_ARGS__, 4) macro(__VA_ARGS__, 5) macro(__VA_ARGS__, 6) macro(__VA_ARGS__, 7) \
          macro(__VA_ARGS__, 8) macro(__VA_ARGS__, 9) macro(__VA_ARGS__, 10)                  \
              macro(__VA_ARGS__, 11)
#define FATHOM_PROBE(name, instruction, reg)                                                   \
  void name() {                                                                                \
    int64_t rounds = kRounds;                                                                  \
    asm volatile(                                                                            \
        "vmovd %1, %%xmm15\n\t" FATHOM_TWELVE(FATHOM_FILL, reg) FATHOM_FILL(reg, 12)         \
            FATHOM_FILL(reg, 13) "1:\n\t" FATHOM_TWELVE(FATHOM_SUM, instruction, reg)        \
        "sub $1, %0\n\t"                                                                     \
        "jnz 1b\n\t"                                                                         \
        "vzeroupper\n\t"                                                                     \
        : "+r"(rounds)                                                                       \
        : "r"(0x3F803F80)                                                                    \
        : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",      \
          "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"); \
  }

FATHOM_PROBE(FmaZmm, "vfmadd231ps", "zmm")
FATHOM_PROBE(FmaYmm, "vfmadd231ps", "ymm")
FATHOM_PROBE(Bf16Zmm, "vdpbf16ps", "zmm")
FATHOM_PROBE(Int8Zmm, "vpdpbusd", "zmm")
FATHOM_PROBE(Int8Ymm, "%{vex%} vpdpbusd", "ymm")

#undef FATHOM_PROBE
#undef FATHOM_TWELVE
#undef FATHOM_FILL
#undef FATHOM_SUM

// Operations of a call when the accumulators are vectors of `bytes` and each of their 4-byte lanes
// adds `products` products.
constexpr int64_t Operations(int64_t bytes, int64_t products) {
  return kRounds * kAccumulators * (bytes / 4) * products * 2;
}

#endif

}  // namespace

ComputeProbe FindProbe(ProbeKind kind) {
#if defined(__x86_64__)
  // The compiler's table also knows whether the system keeps the registers.
  switch (kind) {
    case ProbeKind::kFp32Fma:
      if (__builtin_cpu_supports("avx512f")) {
        return {"vfmadd231ps zmm", Operations(64, 1), FmaZmm};
      }
      if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return {"vfmadd231ps ymm", Operations(32, 1), FmaYmm};
      }
      break;
    case ProbeKind::kBf16Dot:
      if (__builtin_cpu_supports("avx512bf16")) {
        return {"vdpbf16ps zmm", Operations(64, 2), Bf16Zmm};
      }
      break;
    case ProbeKind::kInt8Dot:
      if (__builtin_cpu_supports("avx512vnni")) {
        return {"vpdpbusd zmm", Operations(64, 4), Int8Zmm};
      }
      if (__builtin_cpu_supports("avxvnni")) {
        return {"vpdpbusd ymm", Operations(32, 4), Int8Ymm};
      }
      break;
  }
#else
  static_cast<void>(kind);
#endif
  return {};
}

uint64_t ReadWords(const uint64_t* memory, size_t bytes) {
  // One stream seldom gets all that a core can have: it prefetches within a page only.
  constexpr size_t kStreams = 8, kLineWords = 8, kAheadWords = 2048 / sizeof(uint64_t);
  const size_t stream_words = bytes / sizeof(uint64_t) / kStreams;
  uint64_t sums[kLineWords] = {};
  for (size_t line = 0; line < stream_words; line += kLineWords) {
    for (size_t stream = 0; stream < kStreams; ++stream) {
      const uint64_t* words = memory + stream * stream_words + line;
      __builtin_prefetch(words + kAheadWords);
      for (size_t k = 0; k < kLineWords; ++k) sums[k] += words[k];
    }
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace fathom::bench
