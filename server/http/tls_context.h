// The server's side of TLS, from files. Internal to server/http.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "base/status.h"
#include "server/http/http_server.h"

namespace fathom::http {

// TLS 1.2 and later. The error names the file at fault: not readable, not PEM, or a key that is not
// the certificate's. Null where `options` names no certificate.
Result<std::unique_ptr<boost::asio::ssl::context>> MakeTlsContext(const TlsOptions& options);

}  // namespace fathom::http
