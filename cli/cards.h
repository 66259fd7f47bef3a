// The graphics cards that `fathom plan --gpu` knows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom::cli {

struct Card {
  std::string_view name;  // of the flag
  std::string_view title;
  int64_t memory_bytes = 0;  // what a program can use at most
  bool measured = false;     // free memory beside one CUDA context; else the driver's total
  bool has_kernels = false;  // in backend/cuda
};

std::span<const Card> Cards();

// Case, spaces, '-' and '_' don't matter. kNotFound lists the cards.
Result<Card> FindCard(std::string_view name);

}  // namespace fathom::cli
