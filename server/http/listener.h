// Opens what the server listens at: an address, or the file of a Unix socket. Internal to
// server/http.
#pragma once

#include <sys/types.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/http/http_server.h"

namespace fathom::http {

using Acceptor = boost::asio::basic_socket_acceptor<boost::asio::generic::stream_protocol>;

// The file of a Unix socket, removed with this object unless another has been moved into its place.
class SocketFile {
 public:
  explicit SocketFile(std::string path);  // which has just been bound
  ~SocketFile();
  SocketFile(SocketFile&& other) noexcept;
  SocketFile& operator=(SocketFile&&) = delete;

 private:
  std::string path_;  // empty: moved from
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

struct Listener {
  Acceptor acceptor;    // its executor is a strand
  std::string address;  // as bound; of a Unix socket its path
  int port = 0;         // 0 for a Unix socket
  std::optional<SocketFile> file;
};

// Of HttpOptions: `host` and `port`, or `unix_socket`. The error says which could not be bound and
// why. A socket file at which nobody listens any more is taken over.
Result<Listener> Listen(boost::asio::io_context& context, const HttpOptions& options);

}  // namespace fathom::http
