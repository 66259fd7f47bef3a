// See backend/ops/linear.h for the contract.
#include <vector>
#include "backend/reference/reference_backend.h"

#include "backend/reference/scalar_math.h"

namespace fathom {

Status ReferenceBackend::DoLinear(const LinearArgs& args) {
  std::vector<float> x(args.x.elements().begin(), args.x.elements().end());
  // Groups of 128 never straddle rows: the columns of quantised weights are a multiple of 128.
  reference::QuantiseActivation(numerics(), args.first.weight, x);
  const TensorView<const float> input(x.data(), args.x.dim(0), args.x.dim(1));
  for (const LinearOutput* y : {&args.first, &args.second}) {
    if (!y->weight.empty()) {
      reference::MatMul(numerics(), input, y->weight, args.round_output, y->out);
    }
  }
  return OkStatus();
}

}  // namespace fathom
