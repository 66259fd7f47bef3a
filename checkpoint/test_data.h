// Where the tests of this folder find checkpoints, and how they make small ones.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace fathom {

inline std::filesystem::path SourceDir() { return FATHOM_SOURCE_DIR; }
inline std::filesystem::path TinyA() { return SourceDir() / "tests/data/tiny-a/checkpoint"; }

// Data that the repository does not carry; absent data fails in CI and skips elsewhere.
inline std::filesystem::path ExtraData() {
  const char* root = std::getenv("FATHOM_TEST_DATA");
  return root != nullptr ? std::filesystem::path(root) : SourceDir() / "../shared";
}
inline bool RunsInCi() {
  const char* ci = std::getenv("CI");
  return ci != nullptr && std::string_view(ci) == "true";
}

inline std::string ReadText(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void WriteText(const std::filesystem::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  EXPECT_TRUE(out) << path;
}

// A directory of its own, removed at the end.
class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = ::testing::TempDir() + "/fathom_checkpoint_XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace fathom
