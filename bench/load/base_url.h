// BaseUrl: where a server is: http://host[:port][/path].
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace fathom::load {

struct BaseUrl {
  std::string host;  // name or address; IPv6 without brackets
  std::string port = "80";
  std::string path;  // before that of an endpoint: empty, or "/proxy"

  // For the Host header: with brackets where needed, and the port.
  [[nodiscard]] std::string Authority() const;
};

// A trailing "/" or "/v1" is dropped, as endpoints begin with /v1 themselves. kInvalidArgument, or
// kUnimplemented for https.
Result<BaseUrl> ParseBaseUrl(std::string_view url);

}  // namespace fathom::load
