#include "server/ids.h"

#include <random>

namespace fathom {

std::string NewId(std::string_view prefix, int num_digits) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::random_device random;
  std::string id(prefix);
  uint32_t bits = 0;
  for (int i = 0; i < num_digits; ++i, bits >>= 4) {
    if (i % 8 == 0) bits = random();
    id.push_back(kHex[bits & 15]);
  }
  return id;
}

}  // namespace fathom
