#include "cli/preset.h"

#include <map>
#include <system_error>

namespace fathom::cli {

Result<std::filesystem::path> FindPreset(const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  // Installed: PREFIX/bin/fathom and PREFIX/share/fathom/models. Built:
  // SOURCE/build/PRESET/bin/fathom.
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  // Names are compared rather than joined to a path: a preset is never a place elsewhere.
  std::map<std::string, fs::path> presets;
  const auto visit = [&](const fs::path& folder, auto&& config_of) {
    for (fs::directory_iterator it(folder, error); it != fs::directory_iterator();
         it.increment(error)) {
      const fs::path config = config_of(it->path());
      if (fs::is_regular_file(config, error)) presets.emplace(it->path().stem().string(), config);
    }
  };
  for (const fs::path& models : {bin.parent_path() / "share" / "fathom" / "models",
                                 bin.parent_path().parent_path().parent_path() / "models"}) {
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

}  // namespace fathom::cli
