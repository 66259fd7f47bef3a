// See backend/ops/rms_norm.h for the contract.
#include "backend/reference/reference_backend.h"
#include "backend/reference/scalar_math.h"

namespace fathom {

Status ReferenceBackend::DoRmsNorm(const RmsNormArgs& args) {
  for (int64_t i = 0; i < args.x.dim(0); ++i) {
    reference::RmsNormRow(numerics(), args.x.row(i), args.weight.elements(), args.eps,
                          args.out.row(i));
  }
  return OkStatus();
}

}  // namespace fathom
