#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/parallel.h"
#include "engine/local_model.h"

namespace fathom {

namespace {

// `threads` is what CpuBackend takes: a number, or a pool.
template <typename Threads>
Result<std::unique_ptr<Backend>> Make(const std::string& name, Numerics numerics,
                                      Threads& threads) {
  if (name == "cpu") return std::unique_ptr<Backend>(new CpuBackend(numerics, threads));
  if (name == "reference") return std::unique_ptr<Backend>(new ReferenceBackend(numerics));
  return InvalidArgument("backend '" + name + "': known backends are cpu and reference");
}

}  // namespace

Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             int num_threads) {
  const int threads = num_threads > 0 ? num_threads : DefaultThreadCount();
  return Make(name, numerics, threads);
}

Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             ThreadPool& pool) {
  return Make(name, numerics, pool);
}

}  // namespace fathom
