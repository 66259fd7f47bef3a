#include "cli/cards.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace fathom::cli {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

constexpr std::array<Card, 8> kCards = {{
    {"a100", "NVIDIA A100 80 GB", 81920 * kMiB, false},
    {"h100", "NVIDIA H100 80 GB", 81559 * kMiB, false, true},
    {"h200", "NVIDIA H200 141 GB", 149557477376, true, true},
    {"b200", "NVIDIA B200", 183359 * kMiB, false},
    {"l40s", "NVIDIA L40S 48 GB", 46068 * kMiB, false},
    {"rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell 96 GB", 97887 * kMiB, false},
    {"rtx-5090", "NVIDIA GeForce RTX 5090 32 GB", 32607 * kMiB, false},
    {"rtx-4090", "NVIDIA GeForce RTX 4090 24 GB", 24564 * kMiB, false},
}};

std::string Plain(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '-' || c == '_' || c == ' ') continue;
    plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

}  // namespace

std::span<const Card> Cards() { return kCards; }

Result<Card> FindCard(std::string_view name) {
  const auto* const found = std::find_if(kCards.begin(), kCards.end(), [&](const Card& card) {
    return Plain(card.name) == Plain(name);
  });
  if (found != kCards.end()) return *found;
  std::string known;
  for (const Card& card : kCards) {
    known += (known.empty() ? "" : ", ") + std::string(card.name);
  }
  return NotFound("no figures for the card '" + std::string(name) + "'; there are " + known);
}

}  // namespace fathom::cli
