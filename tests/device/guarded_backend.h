// GuardedBackend: the reference backend with a memory of its own, as a device has one.
//
// The memory is out of everybody's reach but during operations and copies: who takes one of its
// addresses for the host's dies of it. Whatever works on this backend has found the way to upload,
// compute and bring back, and tests need no GPU to know. Single-threaded, like every Backend.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "backend/fills_memory.h"
#include "backend/pinned_memory.h"
#include "backend/reference/reference_backend.h"

namespace fathom {

class GuardedMemory final : public DeviceMemory {
 public:
  explicit GuardedMemory(int64_t total_bytes) : total_bytes_(total_bytes) {}

  Status CopyIn(std::byte* to, std::span<const std::byte> from) override;
  Status CopyOut(std::span<std::byte> to, const std::byte* from) override;
  Status CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] bool host_readable() const override { return false; }
  [[nodiscard]] Result<MemoryState> State() const override;

  // What was copied so far.
  [[nodiscard]] int64_t bytes_in() const { return bytes_in_; }
  [[nodiscard]] int64_t bytes_out() const { return bytes_out_; }
  [[nodiscard]] int64_t copies_within() const { return copies_within_; }
  [[nodiscard]] int64_t largest_copy_out() const { return largest_copy_out_; }
  [[nodiscard]] int64_t num_buffers() const { return static_cast<int64_t>(buffers_.size()); }

  // Lets the host reach the buffers while it lives.
  class Access {
   public:
    explicit Access(GuardedMemory& memory) : memory_(memory) { memory_.Protect(true); }
    ~Access() { memory_.Protect(false); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;

   private:
    GuardedMemory& memory_;
  };

 protected:
  // Content is NaNs and ids of nothing.
  Result<std::byte*> AllocateBytes(int64_t bytes) override;
  void FreeBytes(std::byte* data) override;

 private:
  void Protect(bool reachable);
  // kInternal unless the bytes lie in one buffer.
  [[nodiscard]] Status CheckInside(const std::byte* data, int64_t bytes) const;

  const int64_t total_bytes_;
  std::map<std::byte*, int64_t> buffers_;  // mapped bytes by address
  int64_t used_bytes_ = 0;
  int64_t bytes_in_ = 0, bytes_out_ = 0, copies_within_ = 0, largest_copy_out_ = 0;
};

class GuardedBackend : public Backend {
 public:
  explicit GuardedBackend(Numerics numerics, int64_t memory_bytes = int64_t{1} << 40)
      : Backend(numerics), reference_(numerics), memory_(memory_bytes) {}

  [[nodiscard]] std::string_view name() const override { return "guarded"; }
  [[nodiscard]] GuardedMemory& memory() override { return memory_; }
  Status Prepare(const BackendLimits& limits) override {
    limits_ = limits;
    return reference_.Prepare(limits);
  }
  Status BeginStep(const StepPlan& plan) override;
  Status AddExperts(std::span<const ExpertWeights> routed, const ExpertWeights& shared) override;
  // kInternal for experts that AddExperts was not told of.
  Status PrefetchExperts(std::span<const ExpertWeights> routed, int64_t rows,
                         int experts_per_token) override;
  [[nodiscard]] bool samples() const override { return true; }
  // The failure that was asked for, once.
  Status Synchronize() override;

  // The next Synchronize tells this, as a device tells what went wrong in it.
  void FailNext(Status status) { failure_ = std::move(status); }
  [[nodiscard]] const GuardedMemory& guarded_memory() const { return memory_; }
  [[nodiscard]] int num_steps() const { return num_steps_; }
  [[nodiscard]] int num_waits() const { return num_waits_; }
  [[nodiscard]] const BackendLimits& limits() const { return limits_; }
  // By their spans' addresses, in order.
  [[nodiscard]] std::span<const ExpertWeights* const> told() const { return told_; }
  [[nodiscard]] std::span<const ExpertWeights* const> prefetched() const { return prefetched_; }

 protected:
  Status DoEmbedExpand(const EmbedExpandArgs& a) override { return Run(&Backend::EmbedExpand, a); }
  Status DoHcPreNorm(const HcPreNormArgs& a) override { return Run(&Backend::HcPreNorm, a); }
  Status DoHcPost(const HcPostArgs& a) override { return Run(&Backend::HcPost, a); }
  Status DoRmsNorm(const RmsNormArgs& a) override { return Run(&Backend::RmsNorm, a); }
  Status DoLinear(const LinearArgs& a) override { return Run(&Backend::Linear, a); }
  Status DoRopeTable(const RopeTableArgs& a) override { return Run(&Backend::RopeTable, a); }
  Status DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& a) override {
    return Run(&Backend::QNormRopeKvInsert, a);
  }
  Status DoCompressInsert(const CompressInsertArgs& a) override {
    return Run(&Backend::CompressInsert, a);
  }
  Status DoIndexerTopk(const IndexerTopkArgs& a) override { return Run(&Backend::IndexerTopk, a); }
  Status DoSparseAttention(const SparseAttentionArgs& a) override {
    return Run(&Backend::SparseAttention, a);
  }
  Status DoInverseRopeOut(const InverseRopeOutArgs& a) override {
    return Run(&Backend::InverseRopeOut, a);
  }
  Status DoRoute(const RouteArgs& a) override { return Run(&Backend::Route, a); }
  Status DoMoe(const MoeArgs& a) override { return Run(&Backend::Moe, a); }
  Status DoHead(const HeadArgs& a) override { return Run(&Backend::Head, a); }
  Status DoSample(const SampleArgs& a) override { return Run(&Backend::Sample, a); }

 private:
  template <typename Args>
  Status Run(Status (Backend::*operation)(const Args&), const Args& args) {
    const GuardedMemory::Access access(memory_);
    return (reference_.*operation)(args);
  }

  ReferenceBackend reference_;
  GuardedMemory memory_;
  Status failure_;
  BackendLimits limits_;
  std::vector<const ExpertWeights*> told_, prefetched_;
  int num_steps_ = 0;
  int num_waits_ = 0;
  int64_t inexact_told_ = 0;
};

// Memory of the host that this device reads: anybody's, but counted and at an end.
class CountedPinnedMemory final : public DeviceMemory {
 public:
  explicit CountedPinnedMemory(int64_t total_bytes) : total_bytes_(total_bytes) {}

  Status CopyIn(std::byte* to, std::span<const std::byte> from) override;
  Status CopyOut(std::span<std::byte> to, const std::byte* from) override;
  Status CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] bool host_readable() const override { return true; }
  [[nodiscard]] Result<MemoryState> State() const override;
  // Whether the byte lies in one of the buffers.
  [[nodiscard]] bool Holds(const void* data) const;

 protected:
  Result<std::byte*> AllocateBytes(int64_t bytes) override;
  void FreeBytes(std::byte* data) override;

 private:
  const int64_t total_bytes_;
  std::map<std::byte*, int64_t> buffers_;
};

// The same with pinned memory and values of its own, as the CUDA backend has them.
class OffloadingBackend final : public GuardedBackend, public HasPinnedMemory, public FillsMemory {
 public:
  OffloadingBackend(Numerics numerics, int64_t memory_bytes, int64_t pinned_bytes)
      : GuardedBackend(numerics, memory_bytes), pinned_(pinned_bytes) {}

  [[nodiscard]] std::string_view name() const override { return "offloading"; }
  [[nodiscard]] CountedPinnedMemory& pinned_memory() override { return pinned_; }
  Status Fill(const FillRecipe& recipe, std::byte* to, int64_t bytes) override;
  [[nodiscard]] int64_t filled_bytes() const { return filled_bytes_; }

 private:
  CountedPinnedMemory pinned_;
  int64_t filled_bytes_ = 0;
};

}  // namespace fathom
