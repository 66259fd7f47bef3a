#include "backend/cuda/receipts.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "backend/cuda/status.h"

namespace fathom::cuda {

Receipts::~Receipts() {
  for (const Receipt& receipt : receipts_) {
    if (receipt.copied != nullptr) static_cast<void>(cudaEventDestroy(receipt.copied));
  }
}

Status Receipts::Create(int64_t bytes) {
  most_bytes_ = 0;
  for (Receipt& receipt : receipts_) {
    receipt.under_way = false;
    FATHOM_ASSIGN_OR_RETURN(receipt.pinned,
                            PinnedBytes::Create(static_cast<int64_t>(kReportBytes) + bytes));
    if (receipt.copied == nullptr) {
      FATHOM_CUDA(cudaEventCreateWithFlags(&receipt.copied, cudaEventDisableTiming));
    }
  }
  most_bytes_ = static_cast<size_t>(bytes);
  return OkStatus();
}

Result<int> Receipts::Begin(std::span<const std::byte> first, std::span<const std::byte> second,
                            const DeviceReport* report) {
  const size_t bytes = first.size() + second.size();
  if (bytes > most_bytes_) {
    return InvalidArgument("cuda backend: results of " + std::to_string(bytes) +
                           " bytes, room for " + std::to_string(most_bytes_));
  }
  const auto free = std::find_if(receipts_.begin(), receipts_.end(),
                                 [](const Receipt& receipt) { return !receipt.under_way; });
  if (free == receipts_.end()) {
    return InvalidArgument("cuda backend: earlier results are not received yet");
  }
  std::byte* to = free->pinned.data();
  const auto bring = [&](const void* from, size_t size) -> Status {
    if (size > 0) {
      FATHOM_CUDA(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, stream_));
    }
    return OkStatus();
  };
  FATHOM_RETURN_IF_ERROR(bring(report, sizeof(DeviceReport)));
  to += kReportBytes;
  FATHOM_RETURN_IF_ERROR(bring(first.data(), first.size()));
  to += first.size();
  FATHOM_RETURN_IF_ERROR(bring(second.data(), second.size()));
  FATHOM_CUDA(cudaEventRecord(free->copied, stream_));
  free->bytes = bytes;
  free->under_way = true;
  return static_cast<int>(free - receipts_.begin());
}

Result<Receipts::Received> Receipts::Wait(int receipt) {
  if (receipt < 0 || receipt >= static_cast<int>(receipts_.size()) ||
      !receipts_[static_cast<size_t>(receipt)].under_way) {
    return InvalidArgument("cuda backend: receipt " + std::to_string(receipt) +
                           " is of nothing that is under way");
  }
  Receipt& r = receipts_[static_cast<size_t>(receipt)];
  r.under_way = false;
  FATHOM_CUDA(cudaEventSynchronize(r.copied));
  Received received;
  std::memcpy(&received.report, r.pinned.data(), sizeof(DeviceReport));
  received.bytes = {r.pinned.data() + kReportBytes, r.bytes};
  return received;
}

}  // namespace fathom::cuda
