// HostView: a view that the host may read, the device's own or of a copy; for observers.
#pragma once

#include <span>
#include <vector>

#include "backend/device_memory.h"
#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

template <typename T>
class HostView {
 public:
  Status Read(DeviceMemory& memory, TensorView<const T> view) {
    view_ = view;
    if (memory.host_readable()) return OkStatus();
    copy_.resize(static_cast<size_t>(view.size()));
    view_ = view.At(copy_.data());
    return memory.CopyOut(std::as_writable_bytes(std::span(copy_)),
                          reinterpret_cast<const std::byte*>(view.data()));
  }
  [[nodiscard]] TensorView<const T> view() const { return view_; }

 private:
  std::vector<T> copy_;
  TensorView<const T> view_;
};

}  // namespace fathom
