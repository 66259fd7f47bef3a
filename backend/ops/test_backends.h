// The backends that every operation's test runs on, each in both numerics.
//
// A test body is a TEST_P of a fixture derived from OpTest and knows no backend. A program has one
// AllBackends(): those on the host are in ops/host_backends.cc, those of a device in its folder. A
// device reads what the tests keep in vectors, and its backend is done when an operation returns:
// that is the program's business (backend/cuda/test_backends.cc).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace fathom {

struct BackendCase {
  std::string name;
  Numerics numerics = Numerics::kOfficial;
  std::unique_ptr<Backend> (*make)(Numerics) = nullptr;
  std::string missing;  // what this machine lacks for it; its tests are skipped then
};

inline std::ostream& operator<<(std::ostream& out, const BackendCase& c) { return out << c.name; }

std::vector<BackendCase> AllBackends();

inline std::string BackendCaseName(const testing::TestParamInfo<BackendCase>& info) {
  return info.param.name;
}

class OpTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (!GetParam().missing.empty()) GTEST_SKIP() << GetParam().missing;
    backend_ = MakeBackend();
  }

  // Limits that hold every test of this program.
  static std::unique_ptr<Backend> MakeBackend() {
    std::unique_ptr<Backend> backend = GetParam().make(GetParam().numerics);
    const Status status = backend->Prepare({.max_rows = 512,
                                            .max_cols = 1024,
                                            .max_experts = 16,
                                            .max_experts_per_token = 8,
                                            .max_expert_width = 512,
                                            .max_heads = 8,
                                            .max_head_dim = 512,
                                            .max_positions = 1 << 14});
    EXPECT_TRUE(status.ok()) << status.ToString();
    return backend;
  }

  Backend& backend() { return *backend_; }
  [[nodiscard]] bool official() const { return GetParam().numerics == Numerics::kOfficial; }

 private:
  std::unique_ptr<Backend> backend_;
};

// The call refused its arguments and its message names the operand that is wrong.
inline void ExpectRejected(const Status& status, const std::string& operand) {
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
  EXPECT_THAT(status.message(), testing::HasSubstr(operand));
}

}  // namespace fathom

#define ASSERT_STATUS_OK(expr)                                   \
  do {                                                           \
    const ::fathom::Status assert_status = (expr);               \
    ASSERT_TRUE(assert_status.ok()) << assert_status.ToString(); \
  } while (false)

// Runs the TEST_Ps of `fixture` on every backend.
#define FATHOM_ON_ALL_BACKENDS(fixture)                                           \
  INSTANTIATE_TEST_SUITE_P(, fixture, testing::ValuesIn(::fathom::AllBackends()), \
                           ::fathom::BackendCaseName)
