// See backend/ops/hc_post.h for the contract.
#include <array>
#include "backend/reference/reference_backend.h"

#include "backend/reference/scalar_math.h"

namespace fathom {

Status ReferenceBackend::DoHcPost(const HcPostArgs& args) {
  const auto hc = static_cast<size_t>(args.hc.dim(1));
  const auto width = static_cast<size_t>(args.hc.dim(2));
  for (int64_t i = 0; i < args.hc.dim(0); ++i) {
    const std::span<float> copies = args.hc.row(i);
    const std::span<const float> out = args.out.row(i);
    const std::span<const float> post = args.post.row(i);
    const std::span<const float> comb = args.comb.row(i);
    for (size_t d = 0; d < width; ++d) {
      std::array<float, kMaxHcMult> before{};
      for (size_t j = 0; j < hc; ++j) before[j] = copies[j * width + d];
      for (size_t k = 0; k < hc; ++k) {
        double mixed = 0.0;
        for (size_t j = 0; j < hc; ++j) mixed += static_cast<double>(comb[j * hc + k]) * before[j];
        const float added = post[k] * out[d];
        copies[k * width + d] = reference::Bf16(numerics(), static_cast<float>(added + mixed));
      }
    }
  }
  return OkStatus();
}

}  // namespace fathom
