// Plain C++, four rows to a panel: what machines without AVX2 run, and the meaning of the others.
#include "backend/cpu/dot/byte_kernels-inl.h"

#include <cmath>

namespace fathom::cpu {
namespace {

struct Portable {
  static constexpr int kLanes = 4;
  static constexpr int kTokens = 2;
  struct V {
    int32_t lane[kLanes];
  };
  struct F {
    float lane[kLanes];
  };

  template <typename T, typename Fn>
  static T Make(const Fn& fn) {
    T out;
    for (int l = 0; l < kLanes; ++l) out.lane[l] = fn(l);
    return out;
  }
  static V Zero() { return {}; }
  static V Load(const void* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static void Store(void* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }
  static F LoadF(const float* p) {
    F v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static void StoreF(float* p, F v) { __builtin_memcpy(p, &v, sizeof(v)); }
  static void Prefetch(const void*) {}
  static V Broadcast(const void* p) {
    int32_t word;
    __builtin_memcpy(&word, p, sizeof(word));
    return Make<V>([&](int) { return word; });
  }
  static F BroadcastF(const void* p) {
    float value;
    __builtin_memcpy(&value, p, sizeof(value));
    return Make<F>([&](int) { return value; });
  }
  static V Dot(V acc, V a, V b) {
    return Make<V>([&](int l) {
      uint8_t u[4];
      int8_t s[4];
      __builtin_memcpy(u, &a.lane[l], 4);
      __builtin_memcpy(s, &b.lane[l], 4);
      return acc.lane[l] + u[0] * s[0] + u[1] * s[1] + u[2] * s[2] + u[3] * s[3];
    });
  }
  static V Shift8(V v) {
    return Make<V>([&](int l) { return v.lane[l] * 256; });
  }
  static V Add(V a, V b) {
    return Make<V>([&](int l) { return a.lane[l] + b.lane[l]; });
  }
  static F ToFloat(V v) {
    return Make<F>([&](int l) { return static_cast<float>(v.lane[l]); });
  }
  static F Mul(F a, F b) {
    return Make<F>([&](int l) { return a.lane[l] * b.lane[l]; });
  }
  static F MulAdd(F a, F b, F c) {
    return Make<F>([&](int l) { return std::fma(a.lane[l], b.lane[l], c.lane[l]); });
  }
  static V Lookup(V v, int shift) {
    static constexpr uint8_t kTable[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                           12, 11, 10, 9,  8,  6,  4,  0};
    uint8_t bytes[4 * kLanes];
    __builtin_memcpy(bytes, &v, sizeof(bytes));
    for (uint8_t& b : bytes) b = kTable[(b >> shift) & 15];
    return Load(bytes);
  }
  static V LookupLow(V v) { return Lookup(v, 0); }
  static V LookupHigh(V v) { return Lookup(v, 4); }
  static void Transpose(V* v) {
    for (int i = 0; i < kLanes; ++i) {
      for (int j = 0; j < i; ++j) {
        const int32_t word = v[i].lane[j];
        v[i].lane[j] = v[j].lane[i];
        v[j].lane[i] = word;
      }
    }
  }
  static void PackScales(const uint8_t* scales, int64_t stride, int num_rows, float* out) {
    PackScalesScalar<kLanes>(scales, stride, num_rows, out);
  }
};

}  // namespace

constinit const ByteKernels kByteKernelsPortable = MakeByteKernels<Portable>();

}  // namespace fathom::cpu
