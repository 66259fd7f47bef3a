// Calls of a plug-in's functions, and what becomes of their errors.
#pragma once

#include <string>
#include <utility>

#include "backend/plugin/backend_plugin.h"
#include "base/status.h"

namespace fathom::plugin {

// `code` and `message` as a Status whose message begins with `where`. Codes that the interface does
// not have are kInternal; bytes that are not printable ASCII become '?'.
Status ToStatus(const std::string& where, FathomStatus code, FathomError& error);

// Calls functions of one backend, which must take a FathomBackend first and a FathomError last.
class Caller {
 public:
  // Messages begin with the backend's name.
  explicit Caller(std::string backend) : where_(std::move(backend) + ": ") {}

  // What is thrown is an error too, where the system can unwind it: the interface forbids it, and a
  // server should not end of it.
  template <typename Function, typename... Args>
  Status Call(const char* what, Function* function, Args... args) const {
    FathomError error;
    error.message[0] = '\0';
    FathomStatus code = FATHOM_OK;
    try {
      code = function(args..., &error);
    } catch (...) {
      return Internal(where_ + what + " threw an exception");
    }
    return code == FATHOM_OK ? OkStatus() : ToStatus(where_ + what, code, error);
  }
  // An error that the host found in what a function left.
  [[nodiscard]] Status Broken(const std::string& what) const { return Internal(where_ + what); }

 private:
  std::string where_;
};

}  // namespace fathom::plugin
