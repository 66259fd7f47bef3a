#include "server/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace fathom {
namespace {

constexpr std::string_view kScheme = "bearer ";

// The scheme's name is case-insensitive.
bool HasBearerScheme(std::string_view authorization) {
  if (authorization.size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lower != kScheme[i]) return false;
  }
  return true;
}

// Empty where there is none.
std::string_view KeyOf(const http::Request& request) {
  const std::string_view authorization = request.Header("authorization");
  if (HasBearerScheme(authorization)) return authorization.substr(kScheme.size());
  return request.Header("x-api-key");
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) hashes_.push_back(HashOf(key));
}

bool ApiKeys::Allows(const http::Request& request) const {
  return hashes_.empty() || Find(request).has_value();
}

std::optional<size_t> ApiKeys::Find(const http::Request& request) const {
  const std::string_view key = KeyOf(request);
  if (key.empty()) return std::nullopt;
  const Hash given = HashOf(key);
  std::optional<size_t> found;
  // All hashes are compared, whichever fits.
  for (size_t i = 0; i < hashes_.size(); ++i) {
    if (CRYPTO_memcmp(given.data(), hashes_[i].data(), given.size()) == 0) found = i;
  }
  return found;
}

std::string ApiKeys::ClientOf(const http::Request& request) const {
  if (hashes_.empty()) return {};
  static constexpr char kHex[] = "0123456789abcdef";
  const Hash hash = HashOf(KeyOf(request));
  std::string client;
  for (size_t i = 0; i < hash.size() / 2; ++i) {
    client.push_back(kHex[hash[i] >> 4]);
    client.push_back(kHex[hash[i] & 15]);
  }
  return client;
}

ApiKeys::Hash ApiKeys::HashOf(std::string_view key) {
  Hash hash;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), hash.data());
  return hash;
}

}  // namespace fathom
