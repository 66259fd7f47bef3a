// The example plug-in as the build made it (examples/backend_plugin), and files like it whose
// tables say something else.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>

#include "backend/plugin/backend_plugin.h"

namespace fathom {

inline std::string ExamplePlugin() { return FATHOM_BINARY_DIR "/plugins/libexample_backend.so"; }

// The plug-in that tests of any one run on: that which FATHOM_TEST_PLUGIN names, else the example.
inline std::string TestedPlugin() {
  const char* const named = std::getenv("FATHOM_TEST_PLUGIN");
  return named == nullptr ? ExamplePlugin() : named;
}

// A copy of the example; `change` changes what its table says in front of the functions, which are
// out of its reach. Goes with the object. Fails the test where the example has no table.
class ChangedPlugin {
 public:
  explicit ChangedPlugin(const std::function<void(FathomBackendTable&)>& change);
  ~ChangedPlugin();
  ChangedPlugin(const ChangedPlugin&) = delete;
  ChangedPlugin& operator=(const ChangedPlugin&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace fathom
