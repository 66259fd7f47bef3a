// Probes: loops that do one thing as fast as a core can, to know what it could do.
//
// Pure functions; any thread may call them. On processors other than x86-64 there are no compute
// probes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fathom::bench {

enum class ProbeKind {
  kFp32Fma,  // fused multiply-add of fp32
  kBf16Dot,  // pairs of bf16 products added to fp32
  kInt8Dot,  // four products of bytes added to int32
};

struct ComputeProbe {
  const char* instruction = "";  // empty: this processor has none
  int64_t operations = 0;        // of one call of run; a multiplication and an addition are two
  void (*run)() = nullptr;       // some tens of microseconds
};

// With the widest vectors that processor and system support.
ComputeProbe FindProbe(ProbeKind kind);

// Reads every word of the memory in several streams with prefetches ahead. Returns a sum of it,
// so that reading it is not left out. `bytes` is a multiple of kReadUnit.
inline constexpr size_t kReadUnit = 8 * 64;
uint64_t ReadWords(const uint64_t* memory, size_t bytes);

}  // namespace fathom::bench
