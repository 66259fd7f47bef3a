#include "bench/device_limits.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cuda/device_probes.h"

namespace fathom::bench {
namespace {

class DeviceLimits final : public Limits {
 public:
  explicit DeviceLimits(std::unique_ptr<cuda::DeviceProbes> probes) : probes_(std::move(probes)) {}

  Result<double> MeasureRead(int passes) override {
    double best = 0.0;
    for (int pass = 0; pass < passes; ++pass) {
      FATHOM_ASSIGN_OR_RETURN(const double seconds, probes_->Read());
      reads_.push_back(static_cast<double>(buffer_bytes()) / seconds * 1e-9);
      best = std::max(best, reads_.back());
    }
    return best;
  }
  Status MeasureCompute() override {
    FATHOM_ASSIGN_OR_RETURN(double seconds, probes_->Copy());
    copies_.push_back(static_cast<double>(buffer_bytes()) / seconds * 1e-9);
    FATHOM_ASSIGN_OR_RETURN(seconds, probes_->Fp32());
    fp32_.push_back(probes_->fp32_operations() / seconds * 1e-9);
    FATHOM_ASSIGN_OR_RETURN(seconds, probes_->Bf16());
    bf16_.push_back(probes_->bf16_operations() / seconds * 1e-9);
    FATHOM_ASSIGN_OR_RETURN(seconds, probes_->Launches());
    launches_.push_back(seconds / cuda::DeviceProbes::kLaunches * 1e6);
    return OkStatus();
  }
  [[nodiscard]] double fp32() const override {
    return fp32_.empty() ? 0.0 : *std::max_element(fp32_.begin(), fp32_.end());
  }
  [[nodiscard]] int64_t buffer_bytes() const override { return probes_->buffer_bytes(); }
  [[nodiscard]] int64_t cache_bytes() const override { return probes_->cache_bytes(); }
  [[nodiscard]] ReportTable Table() const override {
    return LimitsTable({{"read", "device memory", "gb_per_s", reads_},
                        {"copy", "device memory, read and written", "gb_per_s", copies_},
                        {"fp32", "fma", "gflop_per_s", fp32_},
                        {"bf16", "wgmma m64n128k16, both from shared memory", "gflop_per_s", bf16_},
                        {"launch", "empty kernels in a row, no graph", "us", launches_}});
  }

 private:
  std::unique_ptr<cuda::DeviceProbes> probes_;
  std::vector<double> reads_, copies_, fp32_, bf16_, launches_;
};

}  // namespace

Result<std::unique_ptr<Limits>> MakeDeviceLimits(int device) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<cuda::DeviceProbes> probes,
                          cuda::DeviceProbes::Create(device));
  return std::unique_ptr<Limits>(new DeviceLimits(std::move(probes)));
}

}  // namespace fathom::bench
