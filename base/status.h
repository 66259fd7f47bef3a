// Status and Result<T>: the one way that fathom reports failure.
//
// Errors cross threads, streams and callbacks, and the server maps each code to an HTTP status, so
// they are values. An OK Status is one null pointer. Messages say what was found, what was expected
// and where. Libraries that throw are wrapped where they are called.
// Thread safety: values; distinct objects are independent.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace fathom {

enum class StatusCode {
  kOk,
  kInvalidArgument,
  kNotFound,
  kOutOfMemory,
  kDataLoss,
  kUnimplemented,
  kUnavailable,
  kCancelled,
  kDeadlineExceeded,
  kInternal,
};

// "invalid argument", "data loss", ... for messages and logs.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message);
  Status(const Status& other);
  Status& operator=(const Status& other);
  Status(Status&&) noexcept = default;
  Status& operator=(Status&&) noexcept = default;

  [[nodiscard]] bool ok() const { return rep_ == nullptr; }
  [[nodiscard]] StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  [[nodiscard]] const std::string& message() const;
  // "data loss: model.safetensors: ..." or "ok".
  [[nodiscard]] std::string ToString() const;

 private:
  struct Rep {
    StatusCode code;
    std::string message;
  };
  std::unique_ptr<Rep> rep_;
};

inline Status OkStatus() { return {}; }
inline Status InvalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
inline Status NotFound(std::string m) { return {StatusCode::kNotFound, std::move(m)}; }
inline Status OutOfMemory(std::string m) { return {StatusCode::kOutOfMemory, std::move(m)}; }
inline Status DataLoss(std::string m) { return {StatusCode::kDataLoss, std::move(m)}; }
inline Status Unimplemented(std::string m) { return {StatusCode::kUnimplemented, std::move(m)}; }
inline Status Unavailable(std::string m) { return {StatusCode::kUnavailable, std::move(m)}; }
inline Status Cancelled(std::string m) { return {StatusCode::kCancelled, std::move(m)}; }
inline Status Internal(std::string m) { return {StatusCode::kInternal, std::move(m)}; }

// A value or the Status that says why there is none. Reading the value of a failed Result is a
// programming error (FATHOM_CHECK).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    FATHOM_CHECK(!status_.ok(), "a Result without value needs an error");
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }
  T& value() & {
    CheckValue();
    return *value_;
  }
  const T& value() const& {
    CheckValue();
    return *value_;
  }
  T&& value() && {
    CheckValue();
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void CheckValue() const {
    FATHOM_CHECK(value_.has_value(), "value() of a failed Result: " + status_.ToString());
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace fathom

#define FATHOM_CONCAT_INNER(a, b) a##b
#define FATHOM_CONCAT(a, b) FATHOM_CONCAT_INNER(a, b)
#define FATHOM_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                      \
    if (::fathom::Status fathom_status = (expr); !fathom_status.ok()) return fathom_status; \
  } while (false)
// `lhs` may be a declaration, which takes no parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define FATHOM_ASSIGN_OR_RETURN(lhs, expr) \
  FATHOM_ASSIGN_OR_RETURN_INNER(FATHOM_CONCAT(fathom_result_, __LINE__), lhs, expr)
#define FATHOM_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                  \
  if (!result.ok()) return result.status();              \
  lhs = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
