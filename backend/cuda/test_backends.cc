// The CUDA backend under the operations' tests, and the reference beside it: it is the judge of the
// comparisons and shows that this program's heap and skips change nothing.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/test_gpu.h"
#include "backend/cuda/test_heap.h"
#include "backend/ops/test_backends.h"
#include "backend/reference/reference_backend.h"

namespace fathom {
namespace {

// Waits after every operation, because the tests look at results at once.
class WaitingBackend final : public Backend {
 public:
  explicit WaitingBackend(std::unique_ptr<Backend> backend)
      : Backend(backend->numerics()), backend_(std::move(backend)) {}

  [[nodiscard]] std::string_view name() const override { return backend_->name(); }
  [[nodiscard]] DeviceMemory& memory() override { return backend_->memory(); }
  Status Prepare(const BackendLimits& limits) override { return backend_->Prepare(limits); }
  [[nodiscard]] bool samples() const override { return backend_->samples(); }

 protected:
  Status DoEmbedExpand(const EmbedExpandArgs& a) override { return Wait(backend_->EmbedExpand(a)); }
  Status DoHcPreNorm(const HcPreNormArgs& a) override { return Wait(backend_->HcPreNorm(a)); }
  Status DoHcPost(const HcPostArgs& a) override { return Wait(backend_->HcPost(a)); }
  Status DoRmsNorm(const RmsNormArgs& a) override { return Wait(backend_->RmsNorm(a)); }
  Status DoLinear(const LinearArgs& a) override { return Wait(backend_->Linear(a)); }
  Status DoRopeTable(const RopeTableArgs& a) override { return Wait(backend_->RopeTable(a)); }
  Status DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& a) override {
    return Wait(backend_->QNormRopeKvInsert(a));
  }
  Status DoCompressInsert(const CompressInsertArgs& a) override {
    return Wait(backend_->CompressInsert(a));
  }
  Status DoIndexerTopk(const IndexerTopkArgs& a) override { return Wait(backend_->IndexerTopk(a)); }
  Status DoSparseAttention(const SparseAttentionArgs& a) override {
    return Wait(backend_->SparseAttention(a));
  }
  Status DoInverseRopeOut(const InverseRopeOutArgs& a) override {
    return Wait(backend_->InverseRopeOut(a));
  }
  Status DoRoute(const RouteArgs& a) override { return Wait(backend_->Route(a)); }
  Status DoMoe(const MoeArgs& a) override { return Wait(backend_->Moe(a)); }
  Status DoHead(const HeadArgs& a) override { return Wait(backend_->Head(a)); }
  Status DoSample(const SampleArgs& a) override { return Wait(backend_->Sample(a)); }

 private:
  Status Wait(Status called) {
    Status done = backend_->Synchronize();
    return called.ok() ? done : called;
  }
  std::unique_ptr<Backend> backend_;
};

std::string FindGpu() {
  Result<std::unique_ptr<CudaBackend>> backend = CudaBackend::Create(Numerics::kOfficial);
  if (!backend.ok()) return backend.status().ToString();
  const Status shared = ShareHeapWithGpu();
  return shared.ok() ? "" : shared.ToString();
}

class RequiredGpu final : public testing::Environment {
  void SetUp() override {
    const char* required = std::getenv("FATHOM_REQUIRE_GPU");
    if (required == nullptr || std::string_view(required) != "1") return;
    ASSERT_EQ(MissingGpu(), "") << "FATHOM_REQUIRE_GPU=1 allows no skipping";
  }
};
const testing::Environment* const required_gpu =
    testing::AddGlobalTestEnvironment(new RequiredGpu);  // GoogleTest deletes it

}  // namespace

const std::string& MissingGpu() {
  static const std::string missing = FindGpu();
  return missing;
}

std::vector<BackendCase> AllBackends() {
  const auto reference = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<ReferenceBackend>(numerics);
  };
  const auto cuda = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<WaitingBackend>(CudaBackend::Create(numerics).value());
  };
  return {
      {"reference_official", Numerics::kOfficial, reference, {}},
      {"cuda_official", Numerics::kOfficial, cuda, MissingGpu()},
  };
}

}  // namespace fathom
