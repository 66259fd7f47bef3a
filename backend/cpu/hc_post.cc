// See backend/ops/hc_post.h for the contract.
#include "backend/cpu/scratch.h"

namespace fathom {

Status CpuBackend::DoHcPost(const HcPostArgs& args) {
  const int64_t hc = args.hc.dim(1);
  ForEach(args.hc.dim(0), 4 * hc * hc * args.hc.dim(2), [&](int64_t i, int) {
    cpu::HcPostRow(args.hc.row(i).data(), static_cast<int>(hc), args.out.row(i),
                   args.post.row(i).data(), args.comb.row(i).data(), official());
  });
  return OkStatus();
}

}  // namespace fathom
