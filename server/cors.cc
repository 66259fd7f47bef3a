#include "server/cors.h"

#include <algorithm>

#include "server/api_error.h"
#include "server/json_text.h"

namespace fathom {
namespace {

// A preflight's answer holds for so many seconds; Chromium takes no more than 7200.
constexpr char kMaxAge[] = "600";
// What pages may read of an answer besides the few headers that all may.
constexpr char kExposedHeaders[] = "Retry-After, X-Request-Id";
// "*" spelled out, because browsers take the star literally when credentials are sent.
constexpr char kAllMethods[] = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return Lower(x) == Lower(y); });
}

bool Contains(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string Join(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& item : list) out += (out.empty() ? "" : ", ") + item;
  return out;
}

bool IsOrigin(std::string_view text) {
  if (text == "*" || text == "null") return true;
  const size_t scheme_end = text.find("://");
  if (scheme_end == std::string_view::npos || scheme_end == 0) return false;
  const std::string_view host = text.substr(scheme_end + 3);
  return !host.empty() && host.find_first_of("/?#*@, ") == std::string_view::npos;
}

// The header names of a list "a, B,c" that are not in `allowed`.
bool AllowsAll(const std::vector<std::string>& allowed, std::string_view list) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view name = list.substr(0, comma);
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
    while (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
    const bool found = std::any_of(allowed.begin(), allowed.end(), [name](const std::string& a) {
      return EqualIgnoringCase(a, name);
    });
    if (!found && !name.empty()) return false;
  }
  return true;
}

}  // namespace

CorsPolicy::CorsPolicy(CorsOptions options)
    : options_(std::move(options)),
      any_origin_(Contains(options_.allowed_origins, "*")),
      any_method_(Contains(options_.allowed_methods, "*")),
      any_header_(Contains(options_.allowed_headers, "*")) {}

Result<CorsPolicy> CorsPolicy::Create(CorsOptions options) {
  for (const std::string& origin : options.allowed_origins) {
    if (!IsOrigin(origin)) {
      return InvalidArgument("allowed origin " + QuoteForError(origin) +
                             ": expected scheme://host[:port] without a path, null, or * for all");
    }
  }
  return CorsPolicy(std::move(options));
}

bool CorsPolicy::AllowsOrigin(std::string_view origin) const {
  return !origin.empty() && (any_origin_ || Contains(options_.allowed_origins, origin));
}

http::HeaderList CorsPolicy::HeadersFor(const http::Request& request) const {
  http::HeaderList headers;
  if (options_.allowed_origins.empty()) return headers;
  const bool same_for_all = any_origin_ && !options_.allow_credentials;
  // A cache must not give one origin's answer to another, nor to one that it does not name.
  if (!same_for_all) headers.emplace_back("Vary", "Origin");
  const std::string_view origin = request.Header("origin");
  if (!AllowsOrigin(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", same_for_all ? "*" : std::string(origin));
  if (options_.allow_credentials) headers.emplace_back("Access-Control-Allow-Credentials", "true");
  headers.emplace_back("Access-Control-Expose-Headers", kExposedHeaders);
  return headers;
}

bool CorsPolicy::IsPreflight(const http::Request& request) const {
  return !options_.allowed_origins.empty() && request.method == "OPTIONS" &&
         !request.Header("origin").empty() &&
         !request.Header("access-control-request-method").empty();
}

http::Response CorsPolicy::AnswerPreflight(const http::Request& request) const {
  auto refuse = [](std::string_view what, std::string_view value) {
    return ErrorResponse(
        {400, std::string(what) + " " + QuoteForError(value) + " is not allowed", {}, {}});
  };
  const std::string_view origin = request.Header("origin");
  const std::string_view method = request.Header("access-control-request-method");
  const std::string_view headers = request.Header("access-control-request-headers");
  if (!AllowsOrigin(origin)) return refuse("origin", origin);
  if (!any_method_ && !Contains(options_.allowed_methods, method)) return refuse("method", method);
  if (!any_header_ && !AllowsAll(options_.allowed_headers, headers)) {
    return refuse("one of the headers", headers);
  }
  http::Response response{200, "", {}, ""};
  auto add = [&response](const char* name, std::string value) {
    response.headers.emplace_back(name, std::move(value));
  };
  add("Access-Control-Allow-Methods", any_method_ ? kAllMethods : Join(options_.allowed_methods));
  // A star does not stand for Authorization, so what was asked for is named.
  const std::string allowed = any_header_ ? std::string(headers) : Join(options_.allowed_headers);
  if (!allowed.empty()) add("Access-Control-Allow-Headers", allowed);
  add("Access-Control-Max-Age", kMaxAge);
  return response;
}

}  // namespace fathom
