#include "backend/cpu/int8_weight.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/dot/byte_kernels.h"
#include "backend/cpu/kernels.h"

namespace fathom::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// One group of a row as signed bytes; returns the scale. A group with NaN has the scale NaN.
float Requantise(const float* values, int8_t* bytes) {
  float amax = 0.0f;
  bool finite = true;
  for (int i = 0; i < kInt8Group; ++i) {
    finite = finite && std::isfinite(values[i]);
    amax = std::max(amax, std::fabs(values[i]));
  }
  const float scale = amax / 127.0f;
  for (int i = 0; i < kInt8Group; ++i) {
    bytes[i] = finite && scale > 0.0f ? static_cast<int8_t>(std::lrint(values[i] / scale)) : 0;
  }
  return finite ? scale : std::nanf("");
}

}  // namespace

void Int8Weight::Free::operator()(void* p) const { std::free(p); }

bool Int8Weight::Takes(const WeightView& weight) {
  return weight.dtype == DType::kF8E4M3 && weight.rows % kRowBlock == 0;
}

Result<std::unique_ptr<Int8Weight>> Int8Weight::Make(const WeightView& weight, ThreadPool& pool) {
  const int lanes = ChosenByteKernels().lanes;
  const int64_t cols = weight.cols;
  const int64_t groups = cols / kGroup;
  const auto num_codes = static_cast<size_t>(weight.rows * cols);
  const size_t bytes = num_codes + static_cast<size_t>(weight.rows * groups) * sizeof(float);
  auto copy = std::make_unique<Int8Weight>();
  const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  copy->memory_.reset(
      std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
  if (copy->memory_ == nullptr) {
    return OutOfMemory("--cpu-dense int8: " + std::to_string(bytes) + " bytes for a matrix");
  }
  // Best effort: small pages only cost speed.
  if (alignment == kHugePage) ::madvise(copy->memory_.get(), bytes, MADV_HUGEPAGE);
  copy->cols_ = cols;
  copy->codes_ = static_cast<uint8_t*>(copy->memory_.get());
  copy->scales_ = static_cast<float*>(static_cast<void*>(copy->codes_ + num_codes));
  pool.ParallelFor(weight.rows / lanes, [&](int64_t panel) {
    std::vector<float> values(static_cast<size_t>(cols));
    std::vector<int8_t> quantised(static_cast<size_t>(kGroup));
    const auto first = static_cast<int>(panel) * lanes;
    uint8_t* codes = copy->codes_ + first * cols;
    float* scales = copy->scales_ + first * groups;
    for (int l = 0; l < lanes; ++l) {
      DecodeRows(weight, first + l, 1, values.data());
      for (int64_t g = 0; g < groups; ++g) {
        scales[g * lanes + l] = Requantise(values.data() + g * kGroup, quantised.data());
        for (int64_t c = 0; c < kGroup; ++c) {
          const int64_t column = g * kGroup + c;
          codes[(column / 4 * lanes + l) * 4 + column % 4] =
              static_cast<uint8_t>(quantised[static_cast<size_t>(c)] + kInt8Offset);
        }
      }
    }
  });
  return copy;
}

}  // namespace fathom::cpu
