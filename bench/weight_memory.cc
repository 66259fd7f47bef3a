#include "bench/weight_memory.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "cache/cache_layout.h"

namespace fathom::bench {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFillWords = int64_t{1} << 16;  // of one task

int64_t Aligned(int64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; }

// Eight random bytes as codes of the format: no NaN, and values whose sums stay finite.
uint64_t Codes(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kF8E4M3:
      // Magnitudes from 2^-3 to 2: kernels may take a slower way for zeros and subnormals, which
      // trained weights have few of.
      return (bits & 0x9F9F9F9F9F9F9F9F) | 0x2020202020202020;
    case DType::kBF16:  // magnitudes from 2^-7 to 2^-3
      return (bits & 0x81FF81FF81FF81FF) | 0x3C003C003C003C00;
    case DType::kF32:
      return (bits & 0x81FFFFFF81FFFFFF) | 0x3C0000003C000000;
    default:
      return bits;  // every nibble is an e2m1 code
  }
}

// ue8m0: 2^-11 to 2^-8.
uint64_t Scales(uint64_t bits) { return (bits & 0x0303030303030303) | 0x7474747474747474; }

uint64_t Mix(uint64_t x) {  // splitmix64
  x = (x + 1) * 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

size_t IndexOf(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return 0;
    case DType::kI8:
      return 1;
    case DType::kBF16:
      return 2;
    default:
      FATHOM_CHECK(dtype == DType::kF32, "a format of weights");
      return 3;
  }
}

}  // namespace

int64_t WeightMemory::StoredBytes(DType dtype, int64_t rows, int64_t cols) {
  return ValueBytes(dtype, rows, cols) + ScaleBytes(dtype, rows, cols);
}

int64_t WeightMemory::ScaleRingBytes(DType dtype) const {
  // fp4 has a scale byte for 16 bytes of values; fp8 one for 128 x 128, more for narrow matrices.
  return dtype == DType::kI8 ? bytes_ / 16 : dtype == DType::kF8E4M3 ? bytes_ / 128 : 0;
}

template <typename Code>
Result<DeviceBuffer> WeightMemory::Filled(int64_t bytes, Code code) {
  const int64_t words = CeilDiv(bytes, 8);
  const int64_t room = words * 8 + kAlignment;
  FATHOM_ASSIGN_OR_RETURN(DeviceBuffer buffer, memory_.Allocate(room));
  HostDeviceMemory host;
  DeviceBuffer staged;
  if (!memory_.host_readable()) {
    FATHOM_ASSIGN_OR_RETURN(staged, host.Allocate(room));
  }
  // Not initialised: pages are touched first by the threads that fill them.
  std::byte* const data = staged.data() != nullptr ? staged.data() : buffer.data();
  auto* const out = reinterpret_cast<uint64_t*>(data);
  pool_.ParallelFor(CeilDiv(words, kFillWords), [&](int64_t task) {
    const int64_t end = std::min(words, (task + 1) * kFillWords);
    for (int64_t i = task * kFillWords; i < end; ++i) out[i] = code(Mix(static_cast<uint64_t>(i)));
  });
  if (staged.data() != nullptr) {
    FATHOM_RETURN_IF_ERROR(memory_.CopyIn(buffer.data(), {data, static_cast<size_t>(words * 8)}));
  }
  return buffer;
}

Status WeightMemory::Reserve(const char* name, DType dtype, int rows, int cols) {
  const int64_t values = ValueBytes(dtype, rows, cols);
  if (values > bytes_ || ScaleBytes(dtype, rows, cols) > ScaleRingBytes(dtype)) {
    return InvalidArgument(std::string(name) + " has " + std::to_string(values) +
                           " bytes, weights of a format have room for " + std::to_string(bytes_) +
                           ": a memory of at least " + std::to_string(kNumFormats * values) +
                           " bytes is needed");
  }
  Ring& ring = rings_[IndexOf(dtype)];
  if (ring.values.data() != nullptr) return OkStatus();
  if (const int64_t scales = ScaleRingBytes(dtype); scales > 0) {
    FATHOM_ASSIGN_OR_RETURN(ring.scales, Filled(scales, Scales));
  }
  FATHOM_ASSIGN_OR_RETURN(ring.values,
                          Filled(bytes_, [dtype](uint64_t bits) { return Codes(dtype, bits); }));
  return OkStatus();
}

WeightView WeightMemory::Take(DType dtype, int rows, int cols) {
  Ring& ring = rings_[IndexOf(dtype)];
  FATHOM_CHECK(ring.values.data() != nullptr, "a format that was reserved");
  const auto next = [](int64_t& at, int64_t bytes, int64_t room) {
    if (at + bytes > room) at = 0;
    const int64_t begin = at;
    at += Aligned(bytes);
    return begin;
  };
  WeightView view;
  view.dtype = dtype;
  view.rows = rows;
  view.cols = cols;
  view.data = ring.values.data() + next(ring.next_value, ValueBytes(dtype, rows, cols), bytes_);
  if (const int64_t scales = ScaleBytes(dtype, rows, cols); scales > 0) {
    view.scale = reinterpret_cast<const uint8_t*>(ring.scales.data()) +
                 next(ring.next_scale, scales, ScaleRingBytes(dtype));
  }
  return view;
}

}  // namespace fathom::bench
