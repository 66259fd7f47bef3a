// SyntheticTensor: the random bytes of one tensor, any part of them at any time.
//
// Values come from a counter: byte i of a tensor is a function of (seed, native name, geometry, i)
// and of nothing else, so parts may be made by any thread in any order (base/fill_recipe.h). Only
// additions, products, divisions and square roots are used, which every machine rounds alike.
//
// The distributions keep a random model's activations in the range of a trained one: matrices have
// about unit gain, what is added to the residual stream is a fraction of it, routing and index
// scores are wide enough for the choices to be real ones, and scales differ from group to group.
// Immutable; any thread may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fill_recipe.h"
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

  // What makes the same bytes elsewhere (FillWord); nullptr for tables of expert ids, which only
  // Fill() makes.
  [[nodiscard]] const FillRecipe* recipe() const {
    return recipe_.kind == Kind::kExpertTable ? nullptr : &recipe_;
  }

 private:
  using Kind = FillRecipe::Kind;

  void FillNumbers(uint64_t begin, std::span<std::byte> out) const;
  void FillBytes(uint64_t begin, std::span<std::byte> out) const;
  void FillNibbles(uint64_t begin, std::span<std::byte> out) const;
  void FillExperts(uint64_t begin, std::span<std::byte> out) const;

  FillRecipe recipe_;
  uint64_t unit_bytes_ = 32;
  int num_experts_ = 0;
  int experts_per_token_ = 0;
};

}  // namespace fathom
