#include "engine/cuda_factory.h"

namespace fathom {

bool HasCudaBackend() { return false; }

Result<std::unique_ptr<Backend>> MakeCudaBackend(Numerics, int) {
  return Unimplemented(
      "--backend cuda: this build has no CUDA backend; cmake --preset cuda makes one that has "
      "(CONTRIBUTING.md)");
}

}  // namespace fathom
