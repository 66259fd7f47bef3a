#include "cache/prefix_keys.h"

#include <openssl/evp.h>

#include <memory>

#include "base/check.h"
#include "cache/cache_layout.h"

namespace fathom {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

// SHA-256 of the parts, one after the other. Algorithm and context are looked up once: a block of
// 1 KiB hashes in some microseconds, which a fetch for each would double.
PrefixKey Sha256(std::initializer_list<std::span<const uint8_t>> parts) {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  thread_local const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  FATHOM_CHECK(algorithm != nullptr && context != nullptr, "OpenSSL has SHA-256");
  PrefixKey key;
  EVP_DigestInit_ex2(context.get(), algorithm, nullptr);
  for (const auto& part : parts) EVP_DigestUpdate(context.get(), part.data(), part.size());
  EVP_DigestFinal_ex(context.get(), key.data(), nullptr);
  return key;
}

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Token ids as they lie in memory: little endian on every machine that fathom runs on.
std::span<const uint8_t> Bytes(std::span<const TokenId> tokens) {
  static_assert(sizeof(TokenId) == 4);
  return {reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size_bytes()};
}

}  // namespace

PrefixKey PrefixSeed(std::string_view bytes) { return Sha256({Bytes(bytes)}); }

PrefixKeys::PrefixKeys(const PrefixKey& seed, std::string_view salt,
                       std::span<const TokenId> tokens)
    : seed_(seed), root_(Sha256({seed, Bytes(salt)})), salt_(salt.begin(), salt.end()) {
  Extend(tokens);
}

void PrefixKeys::Extend(std::span<const TokenId> tokens) {
  constexpr size_t kBlock = kBlockPositions;
  for (size_t k = blocks_.size(); (k + 1) * kBlock <= tokens.size(); ++k) {
    const std::span<const uint8_t> ids = Bytes(tokens.subspan(k * kBlock, kBlock));
    blocks_.push_back(k == 0 ? Sha256({seed_, ids, salt_}) : Sha256({blocks_[k - 1], ids}));
  }
}

}  // namespace fathom
