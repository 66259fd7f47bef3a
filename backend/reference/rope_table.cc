// See backend/ops/rope_table.h for the contract.
#include <cmath>
#include "backend/reference/reference_backend.h"

namespace fathom {

Status ReferenceBackend::DoRopeTable(const RopeTableArgs& args) {
  const std::span<const float> frequencies = args.frequencies.elements();
  for (size_t i = 0; i < args.positions.size(); ++i) {
    const std::span<float> row = args.cos_sin.row(static_cast<int64_t>(i));
    for (size_t k = 0; k < frequencies.size(); ++k) {
      const float angle = static_cast<float>(args.positions[i]) * frequencies[k];
      row[2 * k] = static_cast<float>(std::cos(static_cast<double>(angle)));
      row[2 * k + 1] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return OkStatus();
}

}  // namespace fathom
