#include "engine/cuda_factory.h"

#include <utility>

#include "backend/cuda/cuda_backend.h"

namespace fathom {

bool HasCudaBackend() { return true; }

Result<std::unique_ptr<Backend>> MakeCudaBackend(Numerics numerics, int device) {
  CudaOptions options;
  options.device = device;
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<CudaBackend> backend,
                          CudaBackend::Create(numerics, options));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace fathom
