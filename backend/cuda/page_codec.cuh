// Entries of cache pages on the device: backend/page_codec.h, bit for bit.
#pragma once

#include "backend/cuda/formats.cuh"
#include "backend/page_format.h"

namespace fathom::cuda {

inline constexpr int kE4m3Group = 64;
inline constexpr int kE2m1Group = 32;

__device__ inline std::byte* EntryValues(const PageFormat& f, EntryRef e) {
  return e.page + f.value_bytes() * e.row;
}
__device__ inline uint8_t* EntryScales(const PageFormat& f, EntryRef e) {
  return reinterpret_cast<uint8_t*>(e.page + f.scale_offset() + f.scale_bytes() * e.row);
}

// Pages begin and entries lie where the allocator and `dim` put them: no alignment is assumed of
// values wider than a byte.
__device__ inline uint16_t LoadU16(const std::byte* p) {
  return static_cast<uint16_t>(static_cast<unsigned>(p[0]) | static_cast<unsigned>(p[1]) << 8);
}
__device__ inline void StoreU16(std::byte* p, uint16_t value) {
  p[0] = static_cast<std::byte>(value & 0xFF);
  p[1] = static_cast<std::byte>(value >> 8);
}
__device__ inline float LoadF32(const std::byte* p) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof(float) == 0) {
    return *reinterpret_cast<const float*>(p);
  }
  return __uint_as_float(LoadU16(p) | static_cast<uint32_t>(LoadU16(p + 2)) << 16);
}
__device__ inline void StoreF32(std::byte* p, float value) {
  const uint32_t bits = __float_as_uint(value);
  if (reinterpret_cast<uintptr_t>(p) % sizeof(float) == 0) {
    *reinterpret_cast<uint32_t*>(p) = bits;
    return;
  }
  StoreU16(p, static_cast<uint16_t>(bits & 0xFFFF));
  StoreU16(p + 2, static_cast<uint16_t>(bits >> 16));
}

// values[0 .. dim) of an entry, the warp's work. The loads of several elements are under way
// together: nothing that is written here is read by them.
__device__ inline void LoadEntry(const PageFormat& f, EntryRef entry, float* __restrict__ values) {
  const std::byte* __restrict__ in = EntryValues(f, entry);
  const auto* __restrict__ codes = reinterpret_cast<const uint8_t*>(in);
  const uint8_t* __restrict__ scales = EntryScales(f, entry);
  const int dim = f.dim;
  switch (f.encoding) {
    case EntryEncoding::kF32:
#pragma unroll 8
      for (int i = Lane(); i < dim; i += kWarp) values[i] = LoadF32(in + 4 * i);
      return;
    case EntryEncoding::kE4m3Rope: {
      const int nope = dim - f.rope_dim;
#pragma unroll 8
      for (int i = Lane(); i < nope; i += kWarp) {
        values[i] = FromE4m3(codes[i]) * FromUe8m0(scales[i / kE4m3Group]);
      }
      for (int i = nope + Lane(); i < dim; i += kWarp) {
        values[i] = FromBf16(LoadU16(in + nope + 2 * (i - nope)));
      }
      return;
    }
    case EntryEncoding::kE2m1:
#pragma unroll 4
      for (int i = Lane(); i < dim; i += kWarp) {
        const unsigned code = static_cast<unsigned>(codes[i / 2]) >> (i % 2 == 0 ? 0 : 4);
        values[i] = FromE2m1(code) * FromUe8m0(scales[i / kE2m1Group]);
      }
      return;
    case EntryEncoding::kBf16Rope:
    case EntryEncoding::kBf16:
#pragma unroll 8
      for (int i = Lane(); i < dim; i += kWarp) values[i] = FromBf16(LoadU16(in + 2 * i));
      return;
    case EntryEncoding::kE4m3Scaled: {
      const float scale = LoadF32(reinterpret_cast<const std::byte*>(scales));
#pragma unroll 4
      for (int i = Lane(); i < dim; i += kWarp) values[i] = FromE4m3(codes[i]) * scale;
      return;
    }
  }
}

// Stores KV values [group, group + 64) of an entry in kE4m3Rope or kBf16Rope, the warp's work.
__device__ inline void StoreKvGroup(const PageFormat& f, EntryRef entry, const float* values,
                                    int group) {
  std::byte* out = EntryValues(f, entry);
  const int e = E4m3Exponent(GroupAmax(values + group, kE4m3Group));
  const uint8_t byte = ScaleByte(e);
  if (f.encoding == EntryEncoding::kE4m3Rope && Lane() == 0) {
    EntryScales(f, entry)[group / kE4m3Group] = byte;
  }
  for (int i = group + Lane(); i < group + kE4m3Group; i += kWarp) {
    const uint8_t code = ToE4m3(values[i] * PowerOfMinus(e));
    if (f.encoding == EntryEncoding::kE4m3Rope) {
      out[i] = static_cast<std::byte>(code);
    } else {
      StoreU16(out + 2 * i, ToBf16(FromE4m3(code) * FromUe8m0(byte)));
    }
  }
}

// Stores an entry of KV values from shared memory, the work of a block of kBlock threads.
__device__ inline void StoreKvEntry(const PageFormat& f, EntryRef entry, const float* values) {
  std::byte* out = EntryValues(f, entry);
  const int thread = static_cast<int>(threadIdx.x);
  if (f.encoding == EntryEncoding::kF32) {
    for (int i = thread; i < f.dim; i += kBlock) StoreF32(out + 4 * i, values[i]);
    return;
  }
  const int nope = f.dim - f.rope_dim;
  for (int g = WarpIndex() * kE4m3Group; g < nope; g += kWarps * kE4m3Group) {
    StoreKvGroup(f, entry, values, g);
  }
  const bool codes = f.encoding == EntryEncoding::kE4m3Rope;
  for (int i = nope + thread; i < f.dim; i += kBlock) {
    StoreU16(codes ? out + nope + 2 * (i - nope) : out + 2 * i, ToBf16(values[i]));
  }
  // Bytes of scales behind the last group are zero.
  if (codes) {
    const int padded = static_cast<int>(f.scale_bytes());
    for (int i = nope / kE4m3Group + thread; i < padded; i += kBlock) {
      EntryScales(f, entry)[i] = 0;
    }
  }
}

// The largest e2m1 code times 2^6 is 384, the last such product that e4m3 has.
inline constexpr int kE2m1InE4m3Shift = 6;

// Stores an index key from shared memory, one warp's work; `group` is 32 floats of shared memory
// for that warp. False in every lane when the encoding could not keep the rounded values.
__device__ inline bool StoreIndexKey(const PageFormat& f, EntryRef entry, const float* values,
                                     float* group) {
  std::byte* out = EntryValues(f, entry);
  uint8_t* scales = EntryScales(f, entry);
  const int lane = Lane();
  switch (f.encoding) {
    case EntryEncoding::kE2m1:
      for (int g = 0; g < f.dim; g += kE2m1Group) {
        const float value = values[g + lane];
        const int e = E2m1Exponent(WarpMax(fabsf(value)));
        const unsigned code = ToE2m1(value * PowerOfMinus(e));
        const unsigned next = __shfl_down_sync(kAllLanes, code, 1);
        if (lane % 2 == 0) out[(g + lane) / 2] = static_cast<std::byte>(code | next << 4);
        if (lane == 0) scales[g / kE2m1Group] = ScaleByte(e);
      }
      return true;
    case EntryEncoding::kBf16:
      for (int g = 0; g < f.dim; g += kE2m1Group) {
        SimulateE2m1Group(values + g, group);
        StoreU16(out + 2 * (g + lane), ToBf16(group[lane]));
      }
      return true;
    case EntryEncoding::kE4m3Scaled: {
      int largest = 1;
      for (int g = 0; g < f.dim; g += kE2m1Group) {
        largest = max(largest, int{SimulateE2m1Group(values + g, group)});
      }
      // Not below 2^-126: smaller fp32 scales are subnormal, and the smallest group scale is
      // 2^-126.
      const int byte = max(largest - kE2m1InE4m3Shift, 1);
      const float scale = FromUe8m0(static_cast<uint8_t>(byte));
      if (lane == 0) StoreF32(reinterpret_cast<std::byte*>(scales), scale);
      bool exact = true;
      for (int g = 0; g < f.dim; g += kE2m1Group) {
        SimulateE2m1Group(values + g, group);
        const uint8_t code = ToE4m3(group[lane] * PowerOfMinus(byte - 127));
        out[g + lane] = static_cast<std::byte>(code);
        exact = exact && FromE4m3(code) * scale == group[lane];
      }
      return __all_sync(kAllLanes, exact) != 0;
    }
    default:
      for (int i = lane; i < f.dim; i += kWarp) StoreF32(out + 4 * i, values[i]);
      return true;
  }
}

}  // namespace fathom::cuda
