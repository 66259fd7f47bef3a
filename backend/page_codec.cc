#include "backend/page_codec.h"

#include <cstring>

#include "base/formats.h"

namespace fathom {
namespace {

std::byte* Values(const PageFormat& f, EntryRef e) { return e.page + f.value_bytes() * e.row; }
uint8_t* Scales(const PageFormat& f, EntryRef e) {
  return reinterpret_cast<uint8_t*>(e.page + f.scale_offset() + f.scale_bytes() * e.row);
}

constexpr size_t kE4m3Group = 64;
constexpr size_t kE2m1Group = 32;

}  // namespace

void StoreEntry(const PageFormat& format, EntryRef entry, std::span<const float> values) {
  std::byte* out = Values(format, entry);
  switch (format.encoding) {
    case EntryEncoding::kF32:
      std::memcpy(out, values.data(), values.size_bytes());
      return;
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
        const uint16_t bits = FloatToBf16(values[i]);
        std::memcpy(out + nope + 2 * (i - nope), &bits, sizeof(bits));
      }
      return;
    }
    case EntryEncoding::kE2m1: {
      auto* packed = reinterpret_cast<uint8_t*>(out);
      uint8_t* scales = Scales(format, entry);
      for (size_t i = 0; i < values.size(); i += kE2m1Group) {
        scales[i / kE2m1Group] =
            QuantizeE2m1(values.subspan(i, kE2m1Group), {packed + i / 2, kE2m1Group / 2});
      }
      return;
    }
  }
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
        uint16_t bits = 0;
        std::memcpy(&bits, in + nope + 2 * (i - nope), sizeof(bits));
        values[i] = Bf16ToFloat(bits);
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
  }
}

}  // namespace fathom
