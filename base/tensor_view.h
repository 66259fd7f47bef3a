// TensorView<T>: a borrowed, typed, row-major view of up to four dimensions.
//
// Pointer, shape, nothing else: trivially copyable, no ownership, usable in device code. Rows are
// contiguous; `row(i)` is the i-th slice of the first dimension. Which memory it points at is the
// contract of the operation that takes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/check.h"

namespace fathom {

template <typename T>
class TensorView {
 public:
  TensorView() = default;
  TensorView(T* data, int64_t d0) : data_(data), shape_{d0, 1, 1, 1}, rank_(1) {}
  TensorView(T* data, int64_t d0, int64_t d1) : data_(data), shape_{d0, d1, 1, 1}, rank_(2) {}
  TensorView(T* data, int64_t d0, int64_t d1, int64_t d2)
      : data_(data), shape_{d0, d1, d2, 1}, rank_(3) {}
  TensorView(T* data, int64_t d0, int64_t d1, int64_t d2, int64_t d3)
      : data_(data), shape_{d0, d1, d2, d3}, rank_(4) {}
  // A view of mutable elements may be read through a view of const ones.
  template <typename U>
  requires(std::is_same_v<const U, T>)
      TensorView(const TensorView<U>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), shape_(other.shape()), rank_(other.rank()) {}

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::array<int64_t, 4>& shape() const { return shape_; }
  [[nodiscard]] int64_t dim(int i) const { return shape_[static_cast<size_t>(i)]; }
  [[nodiscard]] int64_t size() const { return shape_[0] * shape_[1] * shape_[2] * shape_[3]; }
  [[nodiscard]] bool empty() const { return data_ == nullptr || size() == 0; }
  // Elements of one slice of the first dimension.
  [[nodiscard]] int64_t row_size() const { return shape_[1] * shape_[2] * shape_[3]; }
  [[nodiscard]] std::span<T> row(int64_t i) const {
    FATHOM_DCHECK(i >= 0 && i < shape_[0], "row index out of range");
    return {data_ + i * row_size(), static_cast<size_t>(row_size())};
  }
  // All elements in order.
  [[nodiscard]] std::span<T> elements() const { return {data_, static_cast<size_t>(size())}; }
  // The same shape over other elements.
  [[nodiscard]] TensorView At(T* data) const {
    TensorView view = *this;
    view.data_ = data;
    return view;
  }
  // The first `n` slices of the first dimension.
  [[nodiscard]] TensorView First(int64_t n) const { return Slice(0, n); }
  [[nodiscard]] TensorView Slice(int64_t begin, int64_t n) const {
    FATHOM_DCHECK(begin >= 0 && n >= 0 && begin + n <= shape_[0], "slice out of range");
    TensorView view = *this;
    view.data_ += begin * row_size();
    view.shape_[0] = n;
    return view;
  }

 private:
  T* data_ = nullptr;
  std::array<int64_t, 4> shape_{0, 1, 1, 1};
  int rank_ = 1;
};

}  // namespace fathom
