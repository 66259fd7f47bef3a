// See backend/ops/rope_table.h for the contract.
#include <cmath>

#include "backend/cpu/scratch.h"

namespace fathom {

Status CpuBackend::DoRopeTable(const RopeTableArgs& args) {
  const int64_t pairs = args.frequencies.dim(0);
  // Sine and cosine in double cost some hundred multiplications; once per step, not per layer.
  ForEach(static_cast<int64_t>(args.positions.size()), 512 * pairs, [&](int64_t i, int) {
    const auto position = static_cast<float>(args.positions[static_cast<size_t>(i)]);
    float* row = args.cos_sin.row(i).data();
    for (int64_t k = 0; k < pairs; ++k) {
      const auto angle = static_cast<double>(position * args.frequencies.data()[k]);
      row[2 * k] = static_cast<float>(std::cos(angle));
      row[2 * k + 1] = static_cast<float>(std::sin(angle));
    }
  });
  return OkStatus();
}

}  // namespace fathom
