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
};

std::span<const Card> Cards();

// Case, spaces, '-' and '_' don't matter. kNotFound lists the cards.
Result<Card> FindCard(std::string_view name);

// Why this build computes on none of them (engine/backend_factory.cc).
inline constexpr std::string_view kNoCardBackend = "this build computes on the CPU only";

}  // namespace fathom::cli
