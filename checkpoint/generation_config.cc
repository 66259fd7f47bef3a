#include "checkpoint/generation_config.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/mapped_file.h"
#include "checkpoint/problems.h"

namespace fathom {
namespace {

constexpr int kMaxDepth = 16;
constexpr size_t kMaxBytes = size_t{1} << 20;

}  // namespace

Result<GenerationConfig> ParseGenerationConfig(std::string_view json, std::string_view source) {
  using Json = nlohmann::json;
  if (json.size() > kMaxBytes || JsonDepth(json) > kMaxDepth) {
    return InvalidArgument(std::string(source) + ": larger or deeper than any generation config");
  }
  const Json root = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return InvalidArgument(std::string(source) + ": not a JSON object");

  Problems problems;
  GenerationConfig config;
  const auto number = [&](const char* name, double low, double high, double fallback) {
    const auto it = root.find(name);
    if (it == root.end() || it->is_null()) return fallback;
    if (it->is_number() && it->get<double>() >= low && it->get<double>() <= high) {
      return it->get<double>();
    }
    problems.Add(std::string(name) + ": not a number from " + std::to_string(low) + " to " +
                 std::to_string(high));
    return fallback;
  };
  config.temperature = number("temperature", 0.0, 100.0, 1.0);
  config.top_p = number("top_p", 0.0, 1.0, 1.0);
  if (config.top_p == 0.0) problems.Add("top_p: must be above 0");
  config.top_k = static_cast<int>(number("top_k", 0.0, INT32_MAX, 0.0));
  if (const auto it = root.find("do_sample"); it != root.end() && !it->is_null()) {
    if (!it->is_boolean()) {
      problems.Add("do_sample: not a boolean");
    } else if (!it->get<bool>()) {
      config.temperature = 0.0;
    }
  }
  if (const auto it = root.find("eos_token_id"); it != root.end() && !it->is_null()) {
    for (const Json& id : it->is_array() ? *it : Json::array({*it})) {
      if (id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX) {
        config.eos_token_ids.push_back(id.get<TokenId>());
      } else {
        problems.Add("eos_token_id: not a token id");
      }
    }
  }
  if (!problems.empty()) return problems.ToStatus(StatusCode::kInvalidArgument, source);
  return config;
}

Result<GenerationConfig> LoadGenerationConfig(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return GenerationConfig{};
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file.bytes();
  return ParseGenerationConfig({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                               path.string());
}

}  // namespace fathom
