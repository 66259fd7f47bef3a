// BehindBackend: a guarded device that brings results to the host later, as one with work in hand.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "backend/runs_behind.h"
#include "tests/device/guarded_backend.h"

namespace fathom {

class BehindBackend final : public GuardedBackend, public RunsBehind {
 public:
  explicit BehindBackend(Numerics numerics) : GuardedBackend(numerics) {}

  [[nodiscard]] std::string_view name() const override { return "behind"; }
  Status BeginStep(const StepPlan& plan) override {
    begun_ = &plan;
    history.push_back('b');
    return GuardedBackend::BeginStep(plan);
  }
  Status PlaceTokens(std::span<const TokenSource> sources,
                     TensorView<const int32_t> tokens) override {
    const GuardedMemory::Access access(memory());
    for (const TokenSource& source : sources) {
      // The plan's ids are what this device reads; whoever made it has them in memory of its own.
      const_cast<TokenId&>(begun_->token_ids[static_cast<size_t>(source.row)]) =
          tokens.data()[source.sampled];
      ++num_placed;
    }
    return OkStatus();
  }
  Result<int> BeginReceive(std::span<const std::byte> first,
                           std::span<const std::byte> second) override {
    FATHOM_RETURN_IF_ERROR(std::exchange(fail_begin_receive, OkStatus()));
    for (size_t i = 0; i < receipts_.size(); ++i) {
      if (receipts_[i].under_way) continue;
      receipts_[i].under_way = true;
      receipts_[i].bytes.clear();
      const GuardedMemory::Access access(memory());
      for (const auto bytes : {first, second}) {
        receipts_[i].bytes.insert(receipts_[i].bytes.end(), bytes.begin(), bytes.end());
      }
      return static_cast<int>(i);
    }
    return InvalidArgument("earlier results are not received yet");
  }
  Result<std::span<const std::byte>> Receive(int receipt) override {
    Receipt& r = receipts_[static_cast<size_t>(receipt)];
    if (!r.under_way) return InvalidArgument("nothing to receive");
    r.under_way = false;
    history.push_back('r');
    FATHOM_RETURN_IF_ERROR(std::exchange(fail_receive, OkStatus()));
    return std::span<const std::byte>(r.bytes);
  }

  std::string history;  // 'b' for a step begun, 'r' for results received
  int num_placed = 0;
  Status fail_receive, fail_begin_receive;  // of the next one

 private:
  struct Receipt {
    bool under_way = false;
    std::vector<std::byte> bytes;
  };
  std::array<Receipt, kMostReceipts> receipts_;
  const StepPlan* begun_ = nullptr;
};

}  // namespace fathom
