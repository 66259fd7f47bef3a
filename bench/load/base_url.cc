#include "bench/load/base_url.h"

#include <algorithm>
#include <charconv>

namespace fathom::load {
namespace {

bool StartsWithIgnoringCase(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == (b >= 'A' && b <= 'Z' ? static_cast<char>(b - 'A' + 'a') : b);
         });
}

bool IsPort(std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port >= 1 && port <= 65535;
}

}  // namespace

std::string BaseUrl::Authority() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + port;
}

Result<BaseUrl> ParseBaseUrl(std::string_view url) {
  const std::string shown = "base URL '" + std::string(url) + "'";
  const auto wrong = [&shown](const char* what) {
    return InvalidArgument(shown + " " + what + ", expected http://host:port");
  };
  // They would end the request's lines.
  const bool has_blank = std::any_of(url.begin(), url.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
  });
  if (has_blank) return wrong("has a blank or control character");
  if (StartsWithIgnoringCase(url, "https://")) {
    return Unimplemented(shown + ": no TLS here; use http, or a proxy that ends TLS");
  }
  constexpr std::string_view kScheme = "http://";
  if (!StartsWithIgnoringCase(url, kScheme)) return wrong("does not begin with http://");
  url.remove_prefix(kScheme.size());
  if (url.find_first_of("?#") != std::string_view::npos) return wrong("has a query or fragment");

  BaseUrl base;
  const size_t slash = std::min(url.find('/'), url.size());
  std::string_view authority = url.substr(0, slash);
  std::string_view path = url.substr(slash);
  if (authority.find('@') != std::string_view::npos) return wrong("has a user name");
  if (authority.starts_with('[')) {
    const size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) return wrong("lacks a ']'");
    base.host = authority.substr(1, bracket - 1);
    authority.remove_prefix(bracket + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    base.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  if (base.host.empty()) return wrong("has no host");
  if (!authority.empty()) {
    if (authority.front() != ':' || !IsPort(authority.substr(1))) return wrong("has a bad port");
    base.port = authority.substr(1);
  }
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  while (path.ends_with('/')) path.remove_suffix(1);
  base.path = path;
  return base;
}

}  // namespace fathom::load
