// A plug-in's memory as a DeviceMemory.
#pragma once

#include "backend/device_memory.h"
#include "backend/plugin/plugin_call.h"

namespace fathom::plugin {

class PluginMemory final : public DeviceMemory {
 public:
  // `table` and `caller` outlive it, and so does `backend`.
  PluginMemory(const FathomBackendTable& table, const Caller& caller, FathomBackend* backend)
      : table_(table), caller_(caller), backend_(backend) {}

  Status CopyIn(std::byte* to, std::span<const std::byte> from) override;
  Status CopyOut(std::span<std::byte> to, const std::byte* from) override;
  Status CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) override;
  [[nodiscard]] bool host_readable() const override { return table_.host_readable != 0; }
  // kInternal for sizes that no memory has.
  [[nodiscard]] Result<MemoryState> State() const override;

 protected:
  // kInternal for addresses that are null or not aligned.
  Result<std::byte*> AllocateBytes(int64_t bytes) override;
  void FreeBytes(std::byte* data) override;

 private:
  const FathomBackendTable& table_;
  const Caller& caller_;
  FathomBackend* const backend_;
};

}  // namespace fathom::plugin
