#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/parallel.h"
#include "engine/cuda_factory.h"
#include "engine/local_model.h"

namespace fathom {

namespace {

// For backends that have none of them.
Status RefuseCpuOptions(const std::string& name, const CpuOptions& cpu) {
  if (cpu.int8_activations) {
    return InvalidArgument("--cpu-activations int8: the " + name +
                           " backend has official ones only");
  }
  if (cpu.int8_dense) {
    return InvalidArgument("--cpu-dense int8: the " + name + " backend uses weights as stored");
  }
  return OkStatus();
}

// `threads` is what CpuBackend takes: a number, or a pool.
template <typename Threads>
Result<std::unique_ptr<Backend>> Make(const std::string& name, Numerics numerics, Threads& threads,
                                      const CpuOptions& cpu, int cuda_device) {
  if (name == "cpu" && numerics == Numerics::kExact && (cpu.int8_activations || cpu.int8_dense)) {
    return InvalidArgument(std::string(cpu.int8_dense ? "--cpu-dense" : "--cpu-activations") +
                           " int8: exact numerics round nothing");
  }
  if (name == "cpu") return std::unique_ptr<Backend>(new CpuBackend(numerics, threads, cpu));
  if (name != "reference" && name != "cuda") {
    return InvalidArgument("backend '" + name + "': known backends are cpu, cuda and reference");
  }
  FATHOM_RETURN_IF_ERROR(RefuseCpuOptions(name, cpu));
  if (name == "cuda") return MakeCudaBackend(numerics, cuda_device);
  return std::unique_ptr<Backend>(new ReferenceBackend(numerics));
}

}  // namespace

Status CheckBackendOptions(const LocalEngineOptions& o) {
  const bool plugin = o.backend == "plugin";
  if (o.fp8_o_proj_inputs) {
    const std::string option = "--o-proj-activations fp8: ";
    if (o.numerics == Numerics::kExact) {
      return InvalidArgument(option + "exact numerics round nothing");
    }
    if (o.cpu.int8_dense) {
      return InvalidArgument(option + "with --cpu-dense int8 these inputs are rounded to int8");
    }
  }
  if (plugin == o.backend_plugin.empty()) {
    return InvalidArgument(plugin ? "--backend-plugin: names no file"
                                  : "--backend-plugin: not with the " + o.backend + " backend");
  }
  if (o.backend != "cuda" && o.cuda_device != 0) {
    return InvalidArgument("--cuda-device " + std::to_string(o.cuda_device) +
                           ": is a GPU of --backend cuda");
  }
  if (o.backend != "cuda" && !plugin) return OkStatus();
  const std::string where =
      plugin ? ": a plug-in computes where it chooses" : ": the cuda backend computes on the GPU";
  if (o.num_threads > 0) return InvalidArgument("--threads" + where);
  if (o.numa != NumaMode::kAuto) return InvalidArgument("--numa" + where);
  // Which weights a plug-in can use shows when it is loaded (MakePluginBackend).
  if (plugin) return RefuseCpuOptions(o.backend, o.cpu);
  if (o.weights != WeightsMode::kMmap) {
    return InvalidArgument("--weights " + std::string(WeightsModeName(o.weights)) +
                           ": with --backend cuda weights are copied to the GPU in any case");
  }
  return OkStatus();
}

Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             int num_threads, const CpuOptions& cpu) {
  const int threads = num_threads > 0 ? num_threads : DefaultThreadCount();
  return Make(name, numerics, threads, cpu, /*cuda_device=*/0);
}

Result<std::unique_ptr<Backend>> MakeBackend(const std::string& name, Numerics numerics,
                                             ThreadPool& pool, const CpuOptions& cpu,
                                             int cuda_device) {
  return Make(name, numerics, pool, cpu, cuda_device);
}

}  // namespace fathom
