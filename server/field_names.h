// Field names of a request that was translated to a chat request.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/api_error.h"

namespace fathom {

// The readers of chat requests name what is wrong as chat requests do; a client of another API has
// to be told in the words of its own request. Single-threaded.
class FieldNames {
 public:
  // What a chat request calls `chat`, with all that is inside it, the client called `original`.
  // What was added first goes first.
  void Add(std::string chat, std::string original);

  // Replaces the name in the error's `param` and where its message mentions it first.
  void Restore(RequestError* error) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace fathom
