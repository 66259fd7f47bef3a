// FillRecipe: the random values of one tensor, any part of them at any time, as plain data.
//
// Byte i of a tensor is a function of the recipe and i alone, so parts may be made by any thread or
// device in any order, and all of them make the same bytes: only additions, products and table
// lookups are used, which every machine rounds alike. Who makes recipes: checkpoint/synth_tensor.h.
// The functions here are constexpr so that a device's code can call them.
#pragma once

#include <bit>
#include <cstdint>

namespace fathom {

struct FillRecipe {
  enum class Kind : int32_t {
    kNormal,      // F32 or BF16: mean + spread * N(0, 1)
    kUniform,     // F32 or BF16: mean +- spread
    kBytes,       // a table of 256 bytes: fp8 codes, scales
    kNibbles,     // packed fp4 codes
    kExpertTable  // K different expert ids per row; not by FillWord
  };
  Kind kind = Kind::kNormal;
  bool is_bf16 = false;
  int32_t num_copies = 0;  // of hc_*_base: the mixing matrix leans to its diagonal; else 0
  uint64_t key = 0;
  double mean = 0.0;
  double spread = 0.0;
  uint8_t table[256] = {};
};

inline constexpr int kNumFillQuantiles = 4096;
// Quantiles of |N(0, 1)| at (i + 1/2) / 4096: kNumFillQuantiles of them, the same on every machine.
const float* FillQuantiles();

constexpr uint64_t FillMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
// Draw `counter` of the stream `key`: SplitMix64, entered anywhere.
constexpr uint64_t FillRandom(uint64_t key, uint64_t counter) {
  return FillMix(key + (counter + 1) * 0x9E3779B97F4A7C15u);
}

// 12 bits of magnitude and a sign.
constexpr double NormalFromBits(const float* quantiles, uint16_t bits) {
  const double magnitude = quantiles[bits & (kNumFillQuantiles - 1)];
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Number `index` of a tensor of kNormal or kUniform, from its 16 random bits.
constexpr float FillNumber(const FillRecipe& recipe, const float* quantiles, uint64_t index,
                           uint16_t bits) {
  constexpr double kCopyLean = 1.2;  // added to the diagonal of the mixing matrix's logits
  if (recipe.kind == FillRecipe::Kind::kUniform) {
    return static_cast<float>(recipe.mean + recipe.spread * ((bits + 0.5) / 32768.0 - 1.0));
  }
  double value = recipe.mean + recipe.spread * NormalFromBits(quantiles, bits);
  if (recipe.num_copies > 0) {
    // [pre | post | matrix], hc + hc + hc * hc values.
    const auto copies = static_cast<uint64_t>(recipe.num_copies);
    if (index >= 2 * copies && (index - 2 * copies) % (copies + 1) == 0) value += kCopyLean;
  }
  return static_cast<float>(value);
}

// Bytes 8 * word and the next seven of a tensor, the first in the lowest bits; what is behind the
// tensor's end means nothing.
constexpr uint64_t FillWord(const FillRecipe& recipe, const float* quantiles, uint64_t word) {
  uint64_t out = 0;
  switch (recipe.kind) {
    case FillRecipe::Kind::kBytes: {
      const uint64_t draw = FillRandom(recipe.key, word);
      for (int i = 0; i < 64; i += 8) out |= uint64_t{recipe.table[draw >> i & 255]} << i;
      return out;
    }
    case FillRecipe::Kind::kNibbles:
      for (int half = 0; half < 2; ++half) {
        const uint64_t draw = FillRandom(recipe.key, 2 * word + static_cast<uint64_t>(half));
        for (int i = 0; i < 4; ++i) {
          const uint64_t low = recipe.table[draw >> (16 * i) & 255];
          const uint64_t high = recipe.table[draw >> (16 * i + 8) & 255];
          out |= (low | high << 4) << (32 * half + 8 * i);
        }
      }
      return out;
    case FillRecipe::Kind::kNormal:
    case FillRecipe::Kind::kUniform: {
      const uint64_t numbers = recipe.is_bf16 ? 4 : 2;
      const int bits = recipe.is_bf16 ? 16 : 32;
      for (uint64_t i = 0; i < numbers; ++i) {
        const uint64_t index = numbers * word + i;  // one draw makes four numbers
        const uint64_t draw = FillRandom(recipe.key, index / 4) >> (16 * (index % 4));
        const float value = FillNumber(recipe, quantiles, index, static_cast<uint16_t>(draw));
        uint64_t u = std::bit_cast<uint32_t>(value);
        // To bf16, nearest even; values are finite.
        if (recipe.is_bf16) u = (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
        out |= u << (static_cast<uint64_t>(bits) * i);
      }
      return out;
    }
    case FillRecipe::Kind::kExpertTable:
      return 0;
  }
  return out;
}

}  // namespace fathom
