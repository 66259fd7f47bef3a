#include "base/host_memory.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPageBytes = 4096;

std::optional<int64_t> Number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

// The number behind `name` at the begin of a line.
std::optional<int64_t> Field(const fs::path& path, std::string_view name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return Number(std::string_view(line).substr(name.size()));
  }
  return std::nullopt;
}

std::optional<int64_t> Only(const fs::path& path) { return Field(path, ""); }

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* inactive_file;  // fields of memory.stat: pages of files, which can be dropped
  const char* active_file;
};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file ", "active_file "};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file ", "total_active_file "};

// A group's limit binds what is below it as well, so all groups up to the root count. A container
// may see its own group as the root although the path says otherwise; then folders of the path are
// missing and the root is what is left.
void Limit(const fs::path& root, fs::path group, const GroupFiles& names, HostMemory& memory) {
  for (;; group = group.parent_path()) {
    const fs::path folder = root / group.relative_path();
    const auto limit = Only(folder / names.limit);  // "max" is no number and no limit
    const auto usage = Only(folder / names.usage);
    if (limit && usage) {
      const int64_t files = Field(folder / "memory.stat", names.inactive_file).value_or(0) +
                            Field(folder / "memory.stat", names.active_file).value_or(0);
      const int64_t held = std::max<int64_t>(0, *usage - files);
      memory.total_bytes = std::min(memory.total_bytes, *limit);
      memory.available_bytes = std::min(memory.available_bytes, *limit - held);
    }
    if (!group.has_relative_path()) return;
  }
}

}  // namespace

HostMemory ReadHostMemory(const fs::path& proc, const fs::path& cgroups) {
  HostMemory memory;
  const auto total = Field(proc / "meminfo", "MemTotal:");
  const auto available = Field(proc / "meminfo", "MemAvailable:");
  if (!total || !available) return memory;
  memory.total_bytes = *total * 1024;
  memory.available_bytes = *available * 1024;
  // "0::/path" for version 2, "5:memory:/path" (a list of controllers) for version 1.
  std::ifstream file(proc / "self" / "cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path path = fs::path(line.substr(second + 1)).lexically_normal();
    if (controllers == ",,") {
      Limit(cgroups, path, kVersion2, memory);
    } else if (controllers.find(",memory,") != std::string::npos) {
      Limit(cgroups / "memory", path, kVersion1, memory);
    }
  }
  memory.available_bytes = std::max(memory.available_bytes, kPageBytes);
  return memory;
}

HostMemory ReadHostMemory() { return ReadHostMemory("/proc", "/sys/fs/cgroup"); }

std::string Gigabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GB", static_cast<double>(bytes) / 1e9);
  return text;
}

}  // namespace fathom
