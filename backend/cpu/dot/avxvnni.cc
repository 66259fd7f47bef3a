// AVX2, FMA and the VEX form of vpdpbusd.
#include "backend/cpu/dot/avx2-inl.h"

namespace fathom::cpu {
namespace {

struct AvxVnni : Avx2Base {
  static V Dot(V acc, V a, V b) { return _mm256_dpbusd_avx_epi32(acc, a, b); }
};

}  // namespace

constinit const ByteKernels kByteKernelsAvxVnni = MakeByteKernels<AvxVnni>();

}  // namespace fathom::cpu
