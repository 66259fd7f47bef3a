// Tests that may compute on a GPU: with the CUDA backend, in builds that have it. Without a GPU
// they are skipped, loudly; FATHOM_REQUIRE_GPU=1 makes that a failure.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/cuda_factory.h"

namespace fathom {

// Why the CUDA backend cannot compute here; empty where it can.
inline const std::string& MissingGpu() {
  static const std::string missing = [] {
    const auto backend = MakeCudaBackend(Numerics::kOfficial);
    return backend.ok() ? std::string() : backend.status().ToString();
  }();
  return missing;
}

inline bool GpuIsRequired() {
  const char* required = std::getenv("FATHOM_REQUIRE_GPU");
  return required != nullptr && std::string_view(required) == "1";
}

}  // namespace fathom

#define FATHOM_REQUIRE_GPU_FOR(backend)                                             \
  do {                                                                              \
    if ((backend) == std::string_view("cuda") && !::fathom::MissingGpu().empty()) { \
      if (::fathom::GpuIsRequired())                                                \
        FAIL() << "FATHOM_REQUIRE_GPU=1, and " << ::fathom::MissingGpu();           \
      GTEST_SKIP() << "SKIPPED: " << ::fathom::MissingGpu();                        \
    }                                                                               \
  } while (false)
