#include "backend/page_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/formats.h"

namespace fathom {
namespace {

std::byte* Values(const PageFormat& f, EntryRef e) { return e.page + f.value_bytes() * e.row; }
uint8_t* Scales(const PageFormat& f, EntryRef e) {
  return reinterpret_cast<uint8_t*>(e.page + f.scale_offset() + f.scale_bytes() * e.row);
}

constexpr size_t kE4m3Group = 64;
constexpr size_t kE2m1Group = 32;
// The largest e2m1 code times 2^6 is 384, the last such product that e4m3 has.
constexpr int kE2m1InE4m3Shift = 6;

void StoreBf16(float value, std::byte* out) {
  const uint16_t bits = FloatToBf16(value);
  std::memcpy(out, &bits, sizeof(bits));
}
float LoadBf16(const std::byte* in) {
  uint16_t bits = 0;
  std::memcpy(&bits, in, sizeof(bits));
  return Bf16ToFloat(bits);
}

// A group as the official code sees it after rounding; returns the scale byte.
uint8_t RoundToE4m3(std::span<const float> values, float* rounded) {
  uint8_t codes[kE4m3Group];
  const uint8_t scale = QuantizeE4m3(values, {codes, values.size()});
  for (size_t i = 0; i < values.size(); ++i) {
    rounded[i] = E4m3ToFloat(codes[i]) * Ue8m0ToFloat(scale);
  }
  return scale;
}
uint8_t RoundToE2m1(std::span<const float> values, float* rounded) {
  uint8_t packed[kE2m1Group / 2];
  const uint8_t scale = QuantizeE2m1(values, {packed, values.size() / 2});
  for (size_t i = 0; i < values.size(); i += 2) {
    rounded[i] = E2m1ToFloat(packed[i / 2]) * Ue8m0ToFloat(scale);
    rounded[i + 1] = E2m1ToFloat(static_cast<uint8_t>(packed[i / 2] >> 4)) * Ue8m0ToFloat(scale);
  }
  return scale;
}

bool StoreE4m3Scaled(std::span<const float> values, uint8_t* codes, uint8_t* scale_out) {
  // Nothing is written before the largest scale is known, so that groups are rounded twice rather
  // than kept in memory whose size depends on `dim`.
  float group[kE2m1Group];
  int largest = 1;
  for (size_t i = 0; i < values.size(); i += kE2m1Group) {
    largest = std::max(largest, int{RoundToE2m1(values.subspan(i, kE2m1Group), group)});
  }
  // Not below 2^-126: smaller fp32 scales are subnormal, and the smallest group scale is 2^-126.
  const int byte = std::max(largest - kE2m1InE4m3Shift, 1);
  const float scale = Ue8m0ToFloat(static_cast<uint8_t>(byte));
  std::memcpy(scale_out, &scale, sizeof(scale));
  bool exact = true;
  for (size_t i = 0; i < values.size(); i += kE2m1Group) {
    RoundToE2m1(values.subspan(i, kE2m1Group), group);
    for (size_t j = 0; j < kE2m1Group; ++j) {
      codes[i + j] = FloatToE4m3(std::ldexp(group[j], 127 - byte));
      exact = exact && E4m3ToFloat(codes[i + j]) * scale == group[j];
    }
  }
  return exact;
}

}  // namespace

bool StoreEntry(const PageFormat& format, EntryRef entry, std::span<const float> values) {
  std::byte* out = Values(format, entry);
  switch (format.encoding) {
    case EntryEncoding::kF32:
      std::memcpy(out, values.data(), values.size_bytes());
      return true;
    case EntryEncoding::kE4m3Rope: {
      const size_t nope = static_cast<size_t>(format.dim - format.rope_dim);
      auto* codes = reinterpret_cast<uint8_t*>(out);
      uint8_t* scales = Scales(format, entry);
      std::memset(scales, 0, static_cast<size_t>(format.scale_bytes()));
      for (size_t i = 0; i < nope; i += kE4m3Group) {
        scales[i / kE4m3Group] =
            QuantizeE4m3(values.subspan(i, kE4m3Group), {codes + i, kE4m3Group});
      }
      for (size_t i = nope; i < values.size(); ++i) {
        StoreBf16(values[i], out + nope + 2 * (i - nope));
      }
      return true;
    }
    case EntryEncoding::kE2m1: {
      auto* packed = reinterpret_cast<uint8_t*>(out);
      uint8_t* scales = Scales(format, entry);
      for (size_t i = 0; i < values.size(); i += kE2m1Group) {
        scales[i / kE2m1Group] =
            QuantizeE2m1(values.subspan(i, kE2m1Group), {packed + i / 2, kE2m1Group / 2});
      }
      return true;
    }
    // Rounded values have few significant bits: bf16 holds them as they are.
    case EntryEncoding::kBf16Rope: {
      const size_t nope = static_cast<size_t>(format.dim - format.rope_dim);
      float group[kE4m3Group];
      for (size_t i = 0; i < nope; i += kE4m3Group) {
        RoundToE4m3(values.subspan(i, kE4m3Group), group);
        for (size_t j = 0; j < kE4m3Group; ++j) StoreBf16(group[j], out + 2 * (i + j));
      }
      for (size_t i = nope; i < values.size(); ++i) StoreBf16(values[i], out + 2 * i);
      return true;
    }
    case EntryEncoding::kBf16: {
      float group[kE2m1Group];
      for (size_t i = 0; i < values.size(); i += kE2m1Group) {
        RoundToE2m1(values.subspan(i, kE2m1Group), group);
        for (size_t j = 0; j < kE2m1Group; ++j) StoreBf16(group[j], out + 2 * (i + j));
      }
      return true;
    }
    case EntryEncoding::kE4m3Scaled:
      return StoreE4m3Scaled(values, reinterpret_cast<uint8_t*>(out), Scales(format, entry));
  }
  return true;
}

void LoadEntry(const PageFormat& format, EntryRef entry, std::span<float> values) {
  const std::byte* in = Values(format, entry);
  switch (format.encoding) {
    case EntryEncoding::kF32:
      std::memcpy(values.data(), in, values.size_bytes());
      return;
    case EntryEncoding::kE4m3Rope: {
      const size_t nope = static_cast<size_t>(format.dim - format.rope_dim);
      const auto* codes = reinterpret_cast<const uint8_t*>(in);
      const uint8_t* scales = Scales(format, entry);
      for (size_t i = 0; i < nope; ++i) {
        values[i] = E4m3ToFloat(codes[i]) * Ue8m0ToFloat(scales[i / kE4m3Group]);
      }
      for (size_t i = nope; i < values.size(); ++i) {
        values[i] = LoadBf16(in + nope + 2 * (i - nope));
      }
      return;
    }
    case EntryEncoding::kE2m1: {
      const auto* packed = reinterpret_cast<const uint8_t*>(in);
      const uint8_t* scales = Scales(format, entry);
      for (size_t i = 0; i < values.size(); i += 2) {
        const float scale = Ue8m0ToFloat(scales[i / kE2m1Group]);
        values[i] = E2m1ToFloat(packed[i / 2]) * scale;
        values[i + 1] = E2m1ToFloat(static_cast<uint8_t>(packed[i / 2] >> 4)) * scale;
      }
      return;
    }
    case EntryEncoding::kBf16Rope:
    case EntryEncoding::kBf16:
      for (size_t i = 0; i < values.size(); ++i) values[i] = LoadBf16(in + 2 * i);
      return;
    case EntryEncoding::kE4m3Scaled: {
      const auto* codes = reinterpret_cast<const uint8_t*>(in);
      float scale = 0.0f;
      std::memcpy(&scale, Scales(format, entry), sizeof(scale));
      for (size_t i = 0; i < values.size(); ++i) values[i] = E4m3ToFloat(codes[i]) * scale;
      return;
    }
  }
}

void RoundKvEntry(const PageFormat& format, std::span<float> values) {
  FATHOM_DCHECK(format.HoldsKv(), "KV entries only");
  if (format.encoding == EntryEncoding::kF32) return;
  const size_t nope = static_cast<size_t>(format.dim - format.rope_dim);
  SimulateE4m3(values.first(nope), kE4m3Group);
  for (float& v : values.subspan(nope)) v = RoundToBf16(v);
}

}  // namespace fathom
