#include "checkpoint/model_path.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/problems.h"
#include "checkpoint/shard_index.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// Follows links: a snapshot is made of links, and one without target is a missing file.
bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}
bool IsDirectory(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

struct HubId {
  std::string organisation, name;
  std::string revision;  // empty: main

  [[nodiscard]] std::string Text() const { return organisation + "/" + name; }
  [[nodiscard]] std::string Command() const {
    return "hf download " + Text() + (revision.empty() ? "" : " --revision " + revision);
  }
};

bool IsHubName(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !text.empty() && text.size() <= 96 && text.front() != '.' && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), plain);
}

// Parts like those of a name, so that a revision cannot lead out of the cache.
bool IsRevision(std::string_view text) {
  if (text.size() > 200) return false;
  while (true) {
    const size_t slash = text.find('/');
    if (!IsHubName(text.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

std::optional<HubId> ParseHubId(std::string_view text) {
  HubId id;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    id.revision = text.substr(at + 1);
    if (!IsRevision(id.revision)) return std::nullopt;
    text = text.substr(0, at);
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  id.organisation = text.substr(0, slash);
  id.name = text.substr(slash + 1);
  if (!IsHubName(id.organisation) || !IsHubName(id.name)) return std::nullopt;
  return id;
}

// The commit that a file of refs/ names; empty when there is none.
std::string ReadRef(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(65, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ' || text.back() == '\r')) {
    text.pop_back();
  }
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), hex)
             ? text
             : std::string();
}

ModelLocation LocationOf(const fs::path& directory, std::string name) {
  ModelLocation location;
  location.name = std::move(name);
  location.config = directory / kConfigFile;
  location.directory = directory;
  location.has_weights = Exists(directory / kSingleFile) || Exists(directory / kIndexFile);
  return location;
}

// Files that a download left out; nothing for a complete snapshot.
Result<std::vector<std::string>> MissingFiles(const fs::path& snapshot, ModelNeed need) {
  std::vector<std::string> missing;
  if (need == ModelNeed::kDirectory) return missing;
  if (!Exists(snapshot / kConfigFile)) missing.emplace_back(kConfigFile);
  if (need == ModelNeed::kConfig || Exists(snapshot / kSingleFile)) return missing;
  if (!Exists(snapshot / kIndexFile)) {
    missing.emplace_back(kIndexFile);
    return missing;
  }
  const fs::path path = snapshot / kIndexFile;
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  FATHOM_ASSIGN_OR_RETURN(
      const ShardIndex index,
      ParseShardIndex({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                      path.string()));
  for (const std::string& shard : index.shards) {
    if (!Exists(snapshot / shard)) missing.push_back(shard);
  }
  return missing;
}

std::string ListFirst(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

Result<ModelLocation> LocateInCache(const HubId& id, ModelNeed need, const fs::path& hub_cache) {
  const std::string model = "model '" + id.Text() + "'";
  const std::string fetch = "fathom downloads nothing; fetch it with: " + id.Command();
  if (hub_cache.empty()) {
    return NotFound(model +
                    ": no such directory, and no Hugging Face cache is known (HF_HUB_CACHE, "
                    "HF_HOME, XDG_CACHE_HOME and HOME are unset)");
  }
  const fs::path repository = hub_cache / ("models--" + id.organisation + "--" + id.name);
  if (!IsDirectory(repository)) {
    return NotFound(model + ": no such directory, and not in the Hugging Face cache (no " +
                    repository.string() + "). " + fetch);
  }
  const std::string revision = id.revision.empty() ? "main" : id.revision;
  std::string commit = ReadRef(repository / "refs" / revision);
  if (commit.empty()) commit = revision;  // a commit may be named itself
  const fs::path snapshot = repository / "snapshots" / commit;
  if (!IsDirectory(snapshot)) {
    return NotFound(model + ": revision " + Quoted(revision) +
                    " is not in the Hugging Face cache (" +
                    (commit == revision ? "no " + (repository / "refs" / revision).string()
                                        : "no " + snapshot.string()) +
                    "). " + fetch);
  }
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> missing, MissingFiles(snapshot, need));
  if (!missing.empty()) {
    return NotFound(model + ": the download in " + snapshot.string() + " is incomplete, " +
                    std::to_string(missing.size()) + " file(s) missing: " + ListFirst(missing) +
                    ". Complete it with: " + id.Command());
  }
  return LocationOf(snapshot, id.Text());
}

// As spelled, whatever links are behind it; "models/nano/" and "." have a last part too.
std::string LastPart(const fs::path& path) {
  std::error_code error;
  fs::path full = fs::absolute(path, error).lexically_normal();
  if (!full.has_filename()) full = full.parent_path();
  return full.filename().string();
}

}  // namespace

fs::path HubCacheFromEnvironment() {
  const auto variable = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value == nullptr ? fs::path() : fs::path(value);
  };
  if (const fs::path cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = variable("HF_HOME"); !home.empty()) return home / "hub";
  if (const fs::path cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "huggingface" / "hub";
  }
  const fs::path home = variable("HOME");
  return home.empty() ? fs::path() : home / ".cache" / "huggingface" / "hub";
}

Result<ModelLocation> LocateModel(const std::string& argument, ModelNeed need,
                                  const fs::path& hub_cache) {
  const std::string model = "model '" + argument + "'";
  if (argument.find('\0') != std::string::npos) return InvalidArgument("model: holds a NUL byte");
  const fs::path path(argument);
  if (IsDirectory(path)) {
    ModelLocation location = LocationOf(path, LastPart(path));
    if (need != ModelNeed::kDirectory && !Exists(location.config))
      return NotFound(model + ": the directory has no config.json");
    return location;
  }
  if (Exists(path)) {
    if (path.extension() == ".json") {
      if (need == ModelNeed::kConfig) return ModelLocation{LastPart(path), path, {}, false};
      return InvalidArgument(model + " is a config; more is needed here, name the directory");
    }
    if (path.extension() == ".safetensors") {
      return InvalidArgument(model + " is one file of a model; name its directory");
    }
    return InvalidArgument(model +
                           " is neither a model directory nor a config.json; fathom reads "
                           "the official layout (safetensors)");
  }
  if (const auto id = ParseHubId(argument)) return LocateInCache(*id, need, hub_cache);
  return NotFound(model + ": no such directory, and no Hugging Face id (org/name)");
}

}  // namespace fathom
