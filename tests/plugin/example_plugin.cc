#include "tests/plugin/example_plugin.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace fathom {

ChangedPlugin::ChangedPlugin(const std::function<void(FathomBackendTable&)>& change) {
  static int number = 0;
  path_ = testing::TempDir() + "example_" + std::to_string(getpid()) + "_" +
          std::to_string(number++) + ".so";
  std::ifstream example(ExamplePlugin(), std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(example),
                          std::istreambuf_iterator<char>()};
  // What no relocation fills in stands in the file as it is.
  FathomBackendTable table = {};
  table.major = FATHOM_PLUGIN_MAJOR;
  table.minor = FATHOM_PLUGIN_MINOR;
  table.struct_size = sizeof(table);
  std::strcpy(table.name, "example");
  const char* const begin = reinterpret_cast<const char*>(&table);
  const auto at = std::search(bytes.begin(), bytes.end(), begin,
                              begin + offsetof(FathomBackendTable, numerics));
  EXPECT_NE(at, bytes.end()) << "no table in " << ExamplePlugin();
  if (at != bytes.end()) {
    constexpr size_t kPlain = offsetof(FathomBackendTable, create);
    std::memcpy(&table, &*at, kPlain);
    change(table);
    std::memcpy(&*at, &table, kPlain);
  }
  std::ofstream(path_, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

ChangedPlugin::~ChangedPlugin() { std::filesystem::remove(path_); }

}  // namespace fathom
