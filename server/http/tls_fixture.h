// Certificates made for a test, and a client that speaks TLS.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "server/http/test_client.h"

namespace fathom::http {

// A key and its certificate, signed by itself or by another.
class TestIdentity {
 public:
  explicit TestIdentity(const std::string& name, const TestIdentity* issuer = nullptr)
      : key_(EVP_EC_gen("P-256"), EVP_PKEY_free), certificate_(X509_new(), X509_free) {
    X509* x = certificate_.get();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), issuer == nullptr ? 1 : 2);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    if (issuer == nullptr) {
      X509_EXTENSION* may_sign =
          X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
      X509_add_ext(x, may_sign, -1);
      X509_EXTENSION_free(may_sign);
    }
    const TestIdentity& by = issuer == nullptr ? *this : *issuer;
    X509_set_issuer_name(x, X509_get_subject_name(by.certificate_.get()));
    X509_sign(x, by.key_.get(), EVP_sha256());
  }

  [[nodiscard]] X509* certificate() const { return certificate_.get(); }
  [[nodiscard]] EVP_PKEY* key() const { return key_.get(); }

  void WriteCertificate(const std::string& path, const char* mode = "w") const {
    FILE* file = std::fopen(path.c_str(), mode);
    PEM_write_X509(file, certificate_.get());
    std::fclose(file);
  }
  // `password` null: not encrypted.
  void WriteKey(const std::string& path, const char* mode = "w",
                const char* password = nullptr) const {
    FILE* file = std::fopen(path.c_str(), mode);
    PEM_write_PrivateKey(file, key_.get(), password == nullptr ? nullptr : EVP_aes_128_cbc(),
                         nullptr, 0, nullptr, const_cast<char*>(password));
    std::fclose(file);
  }

 private:
  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
  std::unique_ptr<X509, decltype(&X509_free)> certificate_;
};

class TlsTestClient final : public TestClient {
 public:
  struct Options {
    const TestIdentity* trusts = nullptr;  // null: everybody
    const TestIdentity* shows = nullptr;   // its certificate, where the server asks for one
    int max_version = 0;                   // TLS1_1_VERSION, ...
  };

  explicit TlsTestClient(int port) : TlsTestClient(port, Options()) {}
  TlsTestClient(int port, const Options& options)
      : TestClient(port), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    SSL_CTX* context = context_.get();
    if (options.max_version != 0) {
      SSL_CTX_set_security_level(context, 0);  // Debian's default refuses old versions by itself
      SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
      SSL_CTX_set_max_proto_version(context, options.max_version);
    }
    if (options.trusts != nullptr) {
      SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context), options.trusts->certificate());
    }
    if (options.shows != nullptr) {
      SSL_CTX_use_certificate(context, options.shows->certificate());
      SSL_CTX_use_PrivateKey(context, options.shows->key());
    }
    ssl_.reset(SSL_new(context));
    SSL_set_fd(ssl_.get(), fd());
    secure_ = SSL_connect(ssl_.get()) == 1;
  }

  [[nodiscard]] bool secure() const { return secure_; }
  [[nodiscard]] std::string version() const { return SSL_get_version(ssl_.get()); }
  // TLS's own word that nothing follows.
  void SayGoodbye() { SSL_shutdown(ssl_.get()); }
  // Whether the server said so, so that nothing was cut off.
  [[nodiscard]] bool ended_cleanly() const {
    return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
  }

 protected:
  ssize_t Transmit(const char* data, size_t size) override {
    return secure_ ? SSL_write(ssl_.get(), data, static_cast<int>(size)) : -1;
  }
  ssize_t Receive(char* data, size_t size) override {
    if (!secure_) return 0;
    const int n = SSL_read(ssl_.get(), data, static_cast<int>(size));
    if (n > 0) return n;
    return SSL_get_error(ssl_.get(), n) == SSL_ERROR_ZERO_RETURN ? 0 : -1;
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_{nullptr, SSL_free};
  bool secure_ = false;
};

}  // namespace fathom::http
