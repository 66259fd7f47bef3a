#include "engine/expert_use_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace fathom {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "fathom expert use";
constexpr int64_t kVersion = 1;
constexpr int64_t kMostCount = int64_t{1} << 53;
constexpr uintmax_t kMostBytes = uintmax_t{64} << 20;

std::string ErrnoText() { return std::generic_category().message(errno); }

std::filesystem::path Partial(const std::filesystem::path& path) {
  return path.string() + ".partial";
}

// An integer from `least` to `most`; -1 for anything else.
int64_t IntegerOr(const Json& json, int64_t least, int64_t most) {
  if (!json.is_number_integer()) return -1;
  if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(most)) return -1;
  const auto value = json.get<int64_t>();
  return value >= least && value <= most ? value : -1;
}

int64_t IntegerIn(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? -1 : IntegerOr(*found, 0, INT32_MAX);
}

std::string Geometry(int64_t layers, int64_t experts, int64_t per_token) {
  return std::to_string(layers) + " layers of " + std::to_string(experts) + " experts, " +
         std::to_string(per_token) + " per token";
}

}  // namespace

std::string ExpertUseJson(const ExpertUse& use) {
  std::string json =
      "{\"format\": \"" + std::string(kFormat) + "\", \"version\": " + std::to_string(kVersion) +
      ",\n \"num_layers\": " + std::to_string(use.num_layers()) +
      ", \"num_experts\": " + std::to_string(use.num_experts()) +
      ", \"experts_per_token\": " + std::to_string(use.experts_per_token()) + ",\n \"counts\": [";
  for (int layer = 0; layer < use.num_layers(); ++layer) {
    json += layer == 0 ? "\n  [" : ",\n  [";
    const char* comma = "";
    for (const int64_t count : use.layer(layer)) {
      json += comma + std::to_string(count);
      comma = ", ";
    }
    json += "]";
  }
  return json + "\n ]}\n";
}

Result<ExpertUse> ParseExpertUse(std::string_view text, std::string_view source,
                                 const ModelConfig& config) {
  const auto damaged = [&](const std::string& what) {
    return DataLoss(std::string(source) + ": " + what + "; --record-expert-use writes such files");
  };
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto format = json.is_object() ? json.find("format") : json.end();
  if (!json.is_object() || format == json.end() || *format != kFormat) {
    return damaged("no record of expert use, or a damaged one");
  }
  const int64_t version = IntegerIn(json, "version");
  if (version != kVersion) {
    return Unimplemented(std::string(source) + ": a record of expert use of version " +
                         (version < 0 ? "?" : std::to_string(version)) + "; this build reads " +
                         std::to_string(kVersion));
  }
  const int64_t layers = IntegerIn(json, "num_layers");
  const int64_t experts = IntegerIn(json, "num_experts");
  const int64_t per_token = IntegerIn(json, "experts_per_token");
  if (layers < 0 || experts < 0 || per_token < 0) {
    return damaged("num_layers, num_experts or experts_per_token is missing or no count");
  }
  if (layers != config.num_layers || experts != config.num_experts ||
      per_token != config.num_experts_per_token) {
    return InvalidArgument(
        std::string(source) + ": recorded with " + Geometry(layers, experts, per_token) +
        "; this model has " +
        Geometry(config.num_layers, config.num_experts, config.num_experts_per_token) +
        " (the record of another model?)");
  }
  const auto counts = json.find("counts");
  if (counts == json.end() || !counts->is_array() ||
      counts->size() != static_cast<size_t>(layers)) {
    return damaged("counts is not a list of " + std::to_string(layers) + " layers");
  }
  ExpertUse use(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const Json& row = (*counts)[static_cast<size_t>(layer)];
    const std::string where = "counts of layer " + std::to_string(layer);
    if (!row.is_array() || row.size() != static_cast<size_t>(experts)) {
      return damaged(where + ": not a list of " + std::to_string(experts));
    }
    for (int expert = 0; expert < config.num_experts; ++expert) {
      const int64_t count = IntegerOr(row[static_cast<size_t>(expert)], 0, kMostCount);
      if (count < 0) {
        return damaged(where + ": expert " + std::to_string(expert) + " has no count from 0 to " +
                       std::to_string(kMostCount));
      }
      use.Set(layer, expert, count);
    }
  }
  return use;
}

Result<ExpertUse> ReadExpertUse(const std::filesystem::path& path, const ModelConfig& config) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return NotFound(path.string() + ": " + error.message());
  if (bytes > kMostBytes) {
    return DataLoss(path.string() + ": " + std::to_string(bytes) +
                    " bytes are too many for a record of expert use");
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes))) {
    return DataLoss(path.string() + ": cannot be read");
  }
  return ParseExpertUse(text, path.string(), config);
}

Status WriteExpertUse(const std::filesystem::path& path, const ExpertUse& use) {
  const std::filesystem::path partial = Partial(path);
  const std::string json = ExpertUseJson(use);
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  bool written = file >= 0;
  for (size_t done = 0; written && done < json.size();) {
    const ssize_t n = ::write(file, json.data() + done, json.size() - done);
    written = n > 0 || (n < 0 && errno == EINTR);
    if (n > 0) done += static_cast<size_t>(n);
  }
  // On the disk before the name is: after a crash there is the old file or the new one.
  written = written && ::fsync(file) == 0 && ::rename(partial.c_str(), path.c_str()) == 0;
  const std::string why = written ? "" : ErrnoText();
  if (file >= 0) ::close(file);
  if (written) return OkStatus();
  if (file >= 0) ::unlink(partial.c_str());
  return Unavailable("--record-expert-use " + path.string() + ": " + why);
}

Status CheckCanWriteExpertUse(const std::filesystem::path& path) {
  const std::filesystem::path partial = Partial(path);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return Unavailable("--record-expert-use " + path.string() + ": is a directory");
  }
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) {
    return Unavailable("--record-expert-use " + path.string() + ": " + ErrnoText());
  }
  ::close(file);
  ::unlink(partial.c_str());
  return OkStatus();
}

}  // namespace fathom
