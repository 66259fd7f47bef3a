// The CUDA backend, where the build has one: cuda_factory.cc is compiled with FATHOM_CUDA and
// cuda_factory_absent.cc without.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace fathom {

bool HasCudaBackend();
// As CudaBackend::Create, on a GPU as the CUDA runtime counts; kUnimplemented, naming the preset,
// in a build without.
Result<std::unique_ptr<Backend>> MakeCudaBackend(Numerics numerics, int device = 0);

}  // namespace fathom
