#include "cli/preset.h"

#include <map>
#include <system_error>

#include "base/mapped_file.h"
#include "checkpoint/model_path.h"

namespace fathom::cli {

namespace {

Result<std::filesystem::path> FindConfig(const std::string& model) {
  std::error_code error;
  if (!std::filesystem::exists(model, error)) {
    Result<std::filesystem::path> preset = FindPreset(model);
    if (preset.ok() || model.find('/') == std::string::npos) return preset;
  }
  FATHOM_ASSIGN_OR_RETURN(const ModelLocation location,
                          LocateModel(model, ModelNeed::kConfig, HubCacheFromEnvironment()));
  return location.config;
}

}  // namespace

std::array<std::filesystem::path, 2> ModelFolders() {
  std::error_code error;
  const std::filesystem::path bin =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  return {bin.parent_path() / "share" / "fathom" / "models",
          bin.parent_path().parent_path().parent_path() / "models"};
}

Result<std::filesystem::path> FindPreset(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  // Names are compared rather than joined to a path: a preset is never a place elsewhere.
  std::map<std::string, fs::path> presets;
  const auto visit = [&](const fs::path& folder, auto&& config_of) {
    for (fs::directory_iterator it(folder, error); it != fs::directory_iterator();
         it.increment(error)) {
      const fs::path config = config_of(it->path());
      if (fs::is_regular_file(config, error)) presets.emplace(it->path().stem().string(), config);
    }
  };
  for (const fs::path& models : ModelFolders()) {
    visit(models, [](const fs::path& directory) { return directory / "config.json"; });
    visit(models / "presets",
          [](const fs::path& file) { return file.extension() == ".json" ? file : fs::path(); });
  }
  if (const auto found = presets.find(name); found != presets.end()) return found->second;
  std::string known;
  for (const auto& [preset, path] : presets) known += (known.empty() ? "" : ", ") + preset;
  return NotFound("model '" + name + "': no such file or directory, and no preset (" +
                  (known.empty() ? "none found" : known) + ")");
}

Result<ModelConfig> ReadConfig(const std::string& model) {
  FATHOM_ASSIGN_OR_RETURN(const std::filesystem::path path, FindConfig(model));
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const auto* text = reinterpret_cast<const char*>(file.bytes().data());
  return ParseModelConfig({text, file.bytes().size()}, path.string());
}

}  // namespace fathom::cli
