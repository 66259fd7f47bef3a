#include "checkpoint/synth_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/formats.h"

namespace fathom {
namespace {

// Scales are 2^(e - 1), 2^e, 2^e, 2^(e + 1) with equal weight: root mean square 1.25 * 2^e.
constexpr std::array<int, 4> kScaleSteps = {-1, 0, 0, 1};
constexpr double kScaleRms = 1.25;
// One standard deviation in units of the codes, at most; the tables reach 2.7 of them. e4m3 ends at
// 448, e2m1 at 6: as close as a quantiser would bring a block's largest value.
constexpr double kFp8Deviation = 128.0;
constexpr double kFp4Deviation = 2.8;
constexpr int64_t kBlock = 128;

uint64_t KeyOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return FillMix(hash ^ FillMix(seed + 0x9E3779B97F4A7C15u));
}

// N(0, 1) from 7 bits and a sign, for the tables of codes.
double NormalFromByte(size_t byte) {
  const auto magnitude = static_cast<uint16_t>((byte & 127) * 32 + 16);
  return NormalFromBits(FillQuantiles(), static_cast<uint16_t>(magnitude | (byte & 128) << 8));
}

// What a quantised matrix is made of: values deviation * N(0, 1) in codes, times 2^exponent.
struct Quantised {
  double deviation = 0.0;
  int exponent = 0;
};
// Output of about `gain` for unit input of width `in`.
Quantised Quantise(double gain, int64_t in, double max_deviation) {
  const double target = gain / std::sqrt(static_cast<double>(in)) / kScaleRms;
  Quantised q;
  q.deviation = std::frexp(target / max_deviation, &q.exponent) * max_deviation;
  return q;
}

struct Numbers {
  double mean = 0.0;
  double spread = 0.0;
};

bool Contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

double Fp8Gain(std::string_view matrix) {
  if (matrix.ends_with("wo_a")) return 1.3;
  if (matrix.ends_with("wo_b")) return 0.35;
  if (matrix.ends_with("shared_experts.w2")) return 0.2;
  if (Contains(matrix, "shared_experts.")) return 1.6;
  return 1.0;
}
double Fp4Gain(std::string_view matrix, const ModelConfig& config) {
  return matrix.ends_with(".w2") ? 0.25 / config.routed_scaling_factor : 1.6;
}

// F32 and BF16 tensors that are normally distributed.
Numbers NumbersOf(std::string_view name, const std::vector<int64_t>& shape) {
  if (name.ends_with("norm.weight")) {
    // Keys a little longer than queries, so that attention has something to prefer.
    const double mean = name.ends_with("kv_norm.weight") || Contains(name, "compressor.") ? 1.3 : 1;
    return {mean, 0.2 * mean};
  }
  if (name.ends_with("_base")) return {0.0, 0.5};
  if (name.ends_with(".ape")) return {0.0, 0.7};
  if (name.ends_with("gate.bias")) return {0.0, 0.05};
  if (name == "embed.weight") return {0.0, 1.0};
  const double unit_gain = 1.0 / std::sqrt(static_cast<double>(shape.back()));
  if (name == "head.weight") return {0.0, 2.5 * unit_gain};
  if (name.ends_with("gate.weight")) return {0.0, 1.5 * unit_gain};  // router and compressors
  return {0.0, unit_gain};
}

}  // namespace

SyntheticTensor::SyntheticTensor(const ModelConfig& config, const ExpectedTensor& tensor,
                                 uint64_t seed) {
  recipe_.key = KeyOf(seed, tensor.name);
  const std::string_view name = tensor.name;
  const bool is_expert = Contains(name, ".experts.");
  const std::string_view matrix = name.substr(0, name.rfind('.'));
  switch (tensor.dtype) {
    case DType::kF8E4M3: {
      recipe_.kind = Kind::kBytes;
      // The width as its scales know it.
      const int64_t in = (tensor.shape.back() + kBlock - 1) / kBlock * kBlock;
      const Quantised q = Quantise(Fp8Gain(matrix), in, kFp8Deviation);
      for (size_t i = 0; i < std::size(recipe_.table); ++i) {
        recipe_.table[i] = FloatToE4m3(static_cast<float>(q.deviation * NormalFromByte(i)));
      }
      break;
    }
    case DType::kI8: {
      recipe_.kind = Kind::kNibbles;
      const Quantised q = Quantise(Fp4Gain(matrix, config), tensor.shape.back() * 2, kFp4Deviation);
      for (size_t i = 0; i < std::size(recipe_.table); ++i) {
        recipe_.table[i] = FloatToE2m1(static_cast<float>(q.deviation * NormalFromByte(i)));
      }
      break;
    }
    case DType::kF8E8M0: {
      recipe_.kind = Kind::kBytes;
      const Quantised q =
          is_expert ? Quantise(Fp4Gain(matrix, config), tensor.shape.back() * 32, kFp4Deviation)
                    : Quantise(Fp8Gain(matrix), tensor.shape.back() * kBlock, kFp8Deviation);
      for (size_t i = 0; i < std::size(recipe_.table); ++i) {
        recipe_.table[i] =
            static_cast<uint8_t>(std::clamp(127 + q.exponent + kScaleSteps[i & 3], 1, 254));
      }
      break;
    }
    case DType::kI64:
      recipe_.kind = Kind::kExpertTable;
      num_experts_ = config.num_experts;
      experts_per_token_ = static_cast<int>(tensor.shape.back());
      unit_bytes_ = sizeof(int64_t) * static_cast<uint64_t>(experts_per_token_);
      break;
    default: {
      FATHOM_CHECK(tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16,
                   "no recipe for " + tensor.name);
      recipe_.is_bf16 = tensor.dtype == DType::kBF16;
      Numbers numbers = NumbersOf(name, tensor.shape);
      if (name.ends_with("attn_sink")) {
        recipe_.kind = Kind::kUniform;
        numbers = {2.0, 2.0};
      } else if (name.starts_with("hc_") || Contains(name, ".hc_")) {
        if (name.ends_with("_scale")) {
          recipe_.kind = Kind::kUniform;
          numbers = {0.75, 0.25};
        }
        if (name.ends_with("attn_base") || name.ends_with("ffn_base"))
          recipe_.num_copies = config.hc_mult;
      }
      recipe_.mean = numbers.mean;
      recipe_.spread = numbers.spread;
    }
  }
}

void SyntheticTensor::FillNumbers(uint64_t begin, std::span<std::byte> out) const {
  const size_t size = recipe_.is_bf16 ? sizeof(uint16_t) : sizeof(float);
  const uint64_t first = begin / size;  // a multiple of 4: one draw makes four numbers
  const float* const quantiles = FillQuantiles();
  uint64_t draw = 0;
  for (size_t i = 0; i < out.size() / size; ++i) {
    draw = i % 4 == 0 ? FillRandom(recipe_.key, (first + i) / 4) : draw >> 16;
    const auto value = FillNumber(recipe_, quantiles, first + i, static_cast<uint16_t>(draw));
    if (recipe_.is_bf16) {
      const uint16_t bits = FloatToBf16(value);
      std::memcpy(out.data() + i * size, &bits, size);
    } else {
      std::memcpy(out.data() + i * size, &value, size);
    }
  }
}

void SyntheticTensor::FillBytes(uint64_t begin, std::span<std::byte> out) const {
  for (size_t i = 0; i < out.size(); i += 8) {
    uint64_t draw = FillRandom(recipe_.key, (begin + i) / 8);
    const size_t n = std::min<size_t>(8, out.size() - i);
    for (size_t j = 0; j < n; ++j, draw >>= 8) out[i + j] = std::byte{recipe_.table[draw & 255]};
  }
}

void SyntheticTensor::FillNibbles(uint64_t begin, std::span<std::byte> out) const {
  for (size_t i = 0; i < out.size(); i += 4) {
    uint64_t draw = FillRandom(recipe_.key, (begin + i) / 4);
    const size_t n = std::min<size_t>(4, out.size() - i);
    for (size_t j = 0; j < n; ++j, draw >>= 16) {
      const unsigned low = recipe_.table[draw & 255];
      const unsigned high = recipe_.table[draw >> 8 & 255];
      out[i + j] = static_cast<std::byte>(low | high << 4);
    }
  }
}

void SyntheticTensor::FillExperts(uint64_t begin, std::span<std::byte> out) const {
  const auto per_token = static_cast<size_t>(experts_per_token_);
  const uint64_t first_row = begin / unit_bytes_;
  std::array<int64_t, 256> row{};
  FATHOM_CHECK(per_token <= row.size() && experts_per_token_ <= num_experts_,
               "the config's limits hold");
  for (size_t i = 0; i < out.size() / unit_bytes_; ++i) {
    // Draws that repeat an expert are thrown away; each row has a stream of its own.
    const uint64_t row_key = FillRandom(recipe_.key, first_row + i);
    uint64_t counter = 0;
    for (size_t n = 0; n < per_token;) {
      const uint64_t draw = FillRandom(row_key, counter++) >> 32;
      row[n] = static_cast<int64_t>(draw * static_cast<uint64_t>(num_experts_) >> 32);
      const auto* const end = row.data() + n;
      if (std::find(static_cast<const int64_t*>(row.data()), end, row[n]) == end) ++n;
    }
    std::memcpy(out.data() + i * unit_bytes_, row.data(), unit_bytes_);
  }
}

void SyntheticTensor::Fill(uint64_t begin, std::span<std::byte> out) const {
  FATHOM_CHECK(begin % unit_bytes_ == 0, "parts begin at whole units");
  switch (recipe_.kind) {
    case Kind::kNormal:
    case Kind::kUniform:
      return FillNumbers(begin, out);
    case Kind::kBytes:
      return FillBytes(begin, out);
    case Kind::kNibbles:
      return FillNibbles(begin, out);
    case Kind::kExpertTable:
      return FillExperts(begin, out);
  }
}

}  // namespace fathom
