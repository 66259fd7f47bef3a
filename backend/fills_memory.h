// Backends that make random values where they compute, for models without files.
//
// Apart from Backend because only benchmarks need it; others copy what the host makes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "base/fill_recipe.h"
#include "base/status.h"

namespace fathom {

class FillsMemory {
 public:
  FillsMemory() = default;
  virtual ~FillsMemory() = default;
  FillsMemory(const FillsMemory&) = delete;
  FillsMemory& operator=(const FillsMemory&) = delete;

  // Writes the first `bytes` of the recipe's tensor (any kind but kExpertTable) to `to`, a multiple
  // of 8 in Backend::memory() or its pinned memory; before all operations that are called later.
  // May return before it is done.
  virtual Status Fill(const FillRecipe& recipe, std::byte* to, int64_t bytes) = 0;
};

// nullptr where the backend does not.
inline FillsMemory* FillsMemoryOf(Backend& backend) { return dynamic_cast<FillsMemory*>(&backend); }

}  // namespace fathom
