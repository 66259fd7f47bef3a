#include "server/http/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

namespace fathom::http {
namespace {

namespace ssl = boost::asio::ssl;
using ErrorCode = boost::system::error_code;

// OpenSSL says "no start line" of a file that cannot be opened, too.
Status CheckReadable(const std::string& file, const char* what) {
  errno = 0;
  std::ifstream in(file);
  char first = 0;
  if (in.get(first)) return OkStatus();
  const std::string reason = in.is_open() && errno == 0 ? "is empty" : std::strerror(errno);
  return InvalidArgument(std::string(what) + " " + file + ": " + reason);
}

Status NotPem(const std::string& file, const char* what, const ErrorCode& error) {
  return InvalidArgument(file + ": no " + what + " in PEM form (" + error.message() + ")");
}

}  // namespace

Result<std::unique_ptr<ssl::context>> MakeTlsContext(const TlsOptions& options) {
  if (options.certificate_file.empty()) {
    if (!options.key_file.empty() || !options.client_ca_file.empty()) {
      return InvalidArgument("TLS needs a certificate file besides " + (options.key_file.empty()
                                                                            ? options.client_ca_file
                                                                            : options.key_file));
    }
    return std::unique_ptr<ssl::context>();
  }
  const std::string& certificate = options.certificate_file;
  const std::string& key = options.key_file.empty() ? certificate : options.key_file;
  FATHOM_RETURN_IF_ERROR(CheckReadable(certificate, "TLS certificate"));
  FATHOM_RETURN_IF_ERROR(CheckReadable(key, "TLS key"));

  ErrorCode error;
  auto context = std::make_unique<ssl::context>(ssl::context::tls_server);
  SSL_CTX* raw = context->native_handle();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  // Without a name for its sessions, OpenSSL refuses clients with certificates that resume one.
  static constexpr unsigned char kSessions[] = "fathom";
  SSL_CTX_set_session_id_context(raw, kSessions, sizeof kSessions - 1);
  // OpenSSL would ask for it on the terminal, and a server would hang.
  context->set_password_callback(
      [](size_t, ssl::context::password_purpose) { return std::string(); }, error);

  context->use_certificate_chain_file(certificate, error);
  if (error) return NotPem(certificate, "certificate", error);
  ERR_clear_error();
  context->use_private_key_file(key, ssl::context::pem, error);
  if (error) {
    // Compared while it is loaded, as the certificate is there already.
    const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
    if (reason == X509_R_KEY_VALUES_MISMATCH || reason == X509_R_KEY_TYPE_MISMATCH) {
      return InvalidArgument(key + ": the key is not that of the certificate in " + certificate);
    }
    return NotPem(key, "unencrypted private key", error);
  }
  if (options.client_ca_file.empty()) return context;
  const std::string& ca = options.client_ca_file;
  FATHOM_RETURN_IF_ERROR(CheckReadable(ca, "TLS client CA"));
  context->load_verify_file(ca, error);
  if (error) return NotPem(ca, "certificate", error);
  // Tells clients which certificates would do.
  STACK_OF(X509_NAME)* names = SSL_load_client_CA_file(ca.c_str());
  if (names != nullptr) SSL_CTX_set_client_CA_list(raw, names);  // takes them
  context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert, error);
  if (error) return InvalidArgument(ca + ": " + error.message());
  return context;
}

}  // namespace fathom::http
