#include "backend/plugin/plugin_memory.h"

#include <cstring>
#include <string>

#include "backend/plugin/convert.h"

namespace fathom::plugin {

Status PluginMemory::CopyIn(std::byte* to, std::span<const std::byte> from) {
  if (from.empty()) return OkStatus();
  return caller_.Call("copy_in", table_.copy_in, backend_, static_cast<void*>(to),
                      static_cast<const void*>(from.data()), static_cast<int64_t>(from.size()));
}

Status PluginMemory::CopyOut(std::span<std::byte> to, const std::byte* from) {
  if (to.empty()) return OkStatus();
  return caller_.Call("copy_out", table_.copy_out, backend_, static_cast<void*>(to.data()),
                      static_cast<const void*>(from), static_cast<int64_t>(to.size()));
}

Status PluginMemory::CopyWithin(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes <= 0) return OkStatus();
  return caller_.Call("copy_within", table_.copy_within, backend_, static_cast<void*>(to),
                      static_cast<const void*>(from), bytes);
}

Result<MemoryState> PluginMemory::State() const {
  auto state = Sized<FathomMemoryState>();
  FATHOM_RETURN_IF_ERROR(caller_.Call("memory_state", table_.memory_state, backend_, &state));
  if (state.total_bytes < 1 || state.free_bytes < 0 || state.free_bytes > state.total_bytes) {
    return caller_.Broken("memory_state: " + std::to_string(state.free_bytes) + " of " +
                          std::to_string(state.total_bytes) + " bytes free");
  }
  std::string name(state.name, strnlen(state.name, sizeof(state.name)));
  for (char& c : name) {
    if (c < ' ' || c >= 0x7F) c = '?';
  }
  return MemoryState{name.empty() ? "a plug-in's memory" : name, state.total_bytes,
                     state.free_bytes};
}

Result<std::byte*> PluginMemory::AllocateBytes(int64_t bytes) {
  void* data = nullptr;
  FATHOM_RETURN_IF_ERROR(caller_.Call("allocate", table_.allocate, backend_, bytes, &data));
  auto* const begin = static_cast<std::byte*>(data);
  if (data == nullptr) return caller_.Broken("allocate: succeeded without an address");
  if (reinterpret_cast<uintptr_t>(data) % kAlignment != 0) {
    FreeBytes(begin);
    return caller_.Broken("allocate: an address that is no multiple of " +
                          std::to_string(kAlignment));
  }
  return begin;
}

void PluginMemory::FreeBytes(std::byte* data) {
  try {
    table_.free(backend_, data);
  } catch (...) {  // nobody could use it here
  }
}

}  // namespace fathom::plugin
