// The backends that every operation's test runs on, each in both numerics.
//
// A test body is a TEST_P of a fixture derived from OpTest and knows no backend; a new backend is
// one more entry of AllBackends().
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"

namespace fathom {

struct BackendCase {
  std::string name;
  Numerics numerics = Numerics::kOfficial;
  std::unique_ptr<Backend> (*make)(Numerics) = nullptr;
};

inline std::ostream& operator<<(std::ostream& out, const BackendCase& c) { return out << c.name; }

inline std::vector<BackendCase> AllBackends() {
  const auto reference = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<ReferenceBackend>(numerics);
  };
  const auto cpu = [](Numerics numerics) -> std::unique_ptr<Backend> {
    return std::make_unique<CpuBackend>(numerics, /*num_threads=*/2);
  };
  return {
      {"reference_official", Numerics::kOfficial, reference},
      {"reference_exact", Numerics::kExact, reference},
      {"cpu_official", Numerics::kOfficial, cpu},
      {"cpu_exact", Numerics::kExact, cpu},
  };
}

inline std::string BackendCaseName(const testing::TestParamInfo<BackendCase>& info) {
  return info.param.name;
}

class OpTest : public testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override { backend_ = MakeBackend(); }

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
