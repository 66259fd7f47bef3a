// Which instruction set the CPU backend computes with.
//
// Levels are ordered by what they need. One is picked when the process first asks, by CPUID and by
// what the operating system saves of the registers; options and tests may ask for a lesser one. The
// bits of fp32 sums depend on the level (vectors of other lengths), those of byte products do not.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace fathom::cpu {

enum class Isa {
  kPortable,    // plain C++
  kSse4,        // SSE4.2; bytes as kPortable
  kAvx2,        // + AVX2, FMA, F16C; bytes by vpmaddubsw
  kAvxVnni,     // + VEX vpdpbusd
  kAvx512,      // AVX-512 F, BW, CD, DQ, VL; bytes as kAvx2
  kAvx512Vnni,  // + AVX-512 VNNI: vpdpbusd on 512 bits
};

// Levels that this machine can run, in ascending order; at least kPortable.
std::span<const Isa> SupportedIsas();
// The level in use: the best one, unless SetIsa chose.
Isa ChosenIsa();
// kInvalidArgument when this machine has not got it. Affects the whole process; call it before
// anything is computed, and never while something is.
Status SetIsa(Isa isa);
// Back to the best level.
void ResetIsa();

// "portable", "sse4", "avx2", "avxvnni", "avx512", "avx512vnni".
std::string_view IsaName(Isa isa);
Result<Isa> IsaFromName(std::string_view name);

}  // namespace fathom::cpu
