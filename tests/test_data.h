// Where tests find their data.
//
// tests/data is part of the project. More (tiny-b, the evaluation prompts) comes from
// FATHOM_TEST_DATA, default ../shared beside the checkout; without it such tests are skipped,
// loudly, except under CI=true, where they fail.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace fathom {

inline std::filesystem::path ProjectPath(const std::string& relative) {
  return std::filesystem::path(FATHOM_SOURCE_DIR) / relative;
}

inline std::filesystem::path SharedPath(const std::string& relative) {
  const char* root = std::getenv("FATHOM_TEST_DATA");
  const std::filesystem::path base =
      root != nullptr ? std::filesystem::path(root) : ProjectPath("../shared");
  return base / relative;
}

inline bool IsCi() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string(ci) == "true";
}

}  // namespace fathom

#define FATHOM_REQUIRE_TEST_DATA(path)                                                     \
  do {                                                                                     \
    if (!std::filesystem::exists(path)) {                                                  \
      if (::fathom::IsCi()) FAIL() << "needed under CI=true: " << (path);                  \
      GTEST_SKIP() << "SKIPPED: no " << (path) << "; set FATHOM_TEST_DATA to where it is"; \
    }                                                                                      \
  } while (false)
