// ApiKeys: checks the key of a request without telling by its time how much of it was right.
// Immutable after construction; any thread may check.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace fathom {

class ApiKeys {
 public:
  // No keys: everything is allowed.
  explicit ApiKeys(const std::vector<std::string>& keys);
  // By `Authorization: Bearer <key>` or, as Anthropic's clients send it, `x-api-key: <key>`.
  [[nodiscard]] bool Allows(const http::Request& request) const;
  // Which key the request shows, as an index of the constructor's list; nothing where it shows none
  // of them.
  [[nodiscard]] std::optional<size_t> Find(const http::Request& request) const;
  [[nodiscard]] size_t size() const { return hashes_.size(); }
  // Tells clients apart without telling their keys: 32 hex digits of the hash of the key, which
  // Allows has accepted. Empty where there are no keys: what a client sends then means nothing.
  [[nodiscard]] std::string ClientOf(const http::Request& request) const;

 private:
  using Hash = std::array<uint8_t, 32>;  // SHA-256; keys themselves are not kept
  static Hash HashOf(std::string_view key);
  std::vector<Hash> hashes_;
};

}  // namespace fathom
