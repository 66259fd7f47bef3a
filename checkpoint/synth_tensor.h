// SyntheticTensor: the random bytes of one tensor, any part of them at any time.
//
// Values come from a counter: byte i of a tensor is a function of (seed, native name, geometry, i)
// and of nothing else, so parts may be made by any thread in any order. Only additions, products,
// divisions and square roots are used, which every machine rounds alike.
//
// The distributions keep a random model's activations in the range of a trained one: matrices have
// about unit gain, what is added to the residual stream is a fraction of it, routing and index
// scores are wide enough for the choices to be real ones, and scales differ from group to group.
// Immutable; any thread may call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"

namespace fathom {

class SyntheticTensor {
 public:
  // `tensor` is one of the catalogue (native name), or of a drafter.
  SyntheticTensor(const ModelConfig& config, const ExpectedTensor& tensor, uint64_t seed);

  // Fill() takes parts that begin at multiples of this, at most 2 KiB.
  [[nodiscard]] uint64_t unit_bytes() const { return unit_bytes_; }
  // The bytes from `begin` on; whole units, except for the last part of the tensor.
  void Fill(uint64_t begin, std::span<std::byte> out) const;

 private:
  enum class Kind {
    kNormal,      // F32 or BF16: mean + spread * N(0, 1)
    kUniform,     // F32: mean +- spread
    kBytes,       // a table of 256 bytes: fp8 codes, scales
    kNibbles,     // packed fp4 codes
    kExpertTable  // K different expert ids per row
  };

  void FillNumbers(uint64_t begin, std::span<std::byte> out) const;
  void FillBytes(uint64_t begin, std::span<std::byte> out) const;
  void FillNibbles(uint64_t begin, std::span<std::byte> out) const;
  void FillExperts(uint64_t begin, std::span<std::byte> out) const;
  [[nodiscard]] double Number(uint64_t index, uint16_t bits) const;

  Kind kind_ = Kind::kNormal;
  uint64_t key_ = 0;
  uint64_t unit_bytes_ = 32;
  bool is_bf16_ = false;
  double mean_ = 0.0;
  double spread_ = 0.0;
  int num_copies_ = 0;  // of hc_*_base: the mixing matrix leans to its diagonal; else 0
  int num_experts_ = 0;
  int experts_per_token_ = 0;
  std::array<uint8_t, 256> table_{};
};

}  // namespace fathom
