// CorsPolicy: which pages of other origins a browser lets use the API.
//
// Immutable; any thread may ask.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/http/message.h"

namespace fathom {

// Pages of other origins that may call the API. No origins: none may.
struct CorsOptions {
  std::vector<std::string> allowed_origins;  // "https://host[:port]", "null", or "*": all
  std::vector<std::string> allowed_methods = {"*"};
  std::vector<std::string> allowed_headers = {"*"};
  bool allow_credentials = false;
};

class CorsPolicy {
 public:
  // kInvalidArgument for an origin that no browser sends, such as one with a path.
  static Result<CorsPolicy> Create(CorsOptions options);

  // What the answer to this request carries besides its own headers; nothing where CORS is off.
  [[nodiscard]] http::HeaderList HeadersFor(const http::Request& request) const;

  // A browser that asks, without a key, whether a page may send some request. False where CORS is
  // off.
  [[nodiscard]] bool IsPreflight(const http::Request& request) const;
  // The answer, without what HeadersFor adds: 200, or 400 with the reason for whoever looks at it
  // in the browser.
  [[nodiscard]] http::Response AnswerPreflight(const http::Request& request) const;

 private:
  explicit CorsPolicy(CorsOptions options);
  [[nodiscard]] bool AllowsOrigin(std::string_view origin) const;

  CorsOptions options_;
  bool any_origin_ = false, any_method_ = false, any_header_ = false;
};

}  // namespace fathom
