#include "server/http/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace fathom::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

Result<Acceptor> Bind(asio::io_context& context,
                      const asio::generic::stream_protocol::endpoint& endpoint,
                      const std::string& where) {
  ErrorCode error;
  Acceptor acceptor(asio::make_strand(context));
  acceptor.open(endpoint.protocol(), error);
  const bool is_unix = endpoint.protocol().family() == AF_UNIX;
  if (!error && !is_unix) acceptor.set_option(Acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return Unavailable("cannot listen on " + where + ": " + error.message());
  return acceptor;
}

Result<Listener> ListenAtAddress(asio::io_context& context, const HttpOptions& options) {
  const std::string where = options.host + ":" + std::to_string(options.port);
  ErrorCode error;
  tcp::resolver resolver(context);
  const auto found =
      resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return InvalidArgument("cannot resolve " + where + ": " + error.message());
  }
  FATHOM_ASSIGN_OR_RETURN(Acceptor acceptor, Bind(context, found.begin()->endpoint(), where));
  const auto local = acceptor.local_endpoint(error);
  if (error) return Unavailable("cannot read the bound address: " + error.message());
  tcp::endpoint bound;
  std::memcpy(bound.data(), local.data(), local.size());
  bound.resize(local.size());
  return Listener{std::move(acceptor), bound.address().to_string(error), bound.port(), {}};
}

// A server that ended without cleaning up leaves its file, and a bind fails at it.
Status MakeWay(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return OkStatus();  // bind says what else is wrong
  if (!S_ISSOCK(info.st_mode)) {
    return InvalidArgument("cannot listen on " + path + ": something is there that is no socket");
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  // Not blocking: a full queue of connections is an answer, too.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Unavailable(std::string("cannot open a socket: ") + std::strerror(errno));
  const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  const int reason = connected ? 0 : errno;
  close(fd);
  if (reason != ECONNREFUSED) {
    return Unavailable("cannot listen on " + path + ": another server does");
  }
  unlink(path.c_str());
  return OkStatus();
}

Result<Listener> ListenAtFile(asio::io_context& context, const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    return InvalidArgument("cannot listen on " + path + ": the path is longer than " +
                           std::to_string(sizeof(sockaddr_un{}.sun_path) - 1) + " bytes");
  }
  FATHOM_RETURN_IF_ERROR(MakeWay(path));
  const asio::local::stream_protocol::endpoint endpoint(path);
  FATHOM_ASSIGN_OR_RETURN(Acceptor acceptor, Bind(context, endpoint, path));
  return Listener{std::move(acceptor), path, 0, SocketFile(path)};
}

}  // namespace

SocketFile::SocketFile(std::string path) : path_(std::move(path)) {
  struct stat info {};
  if (lstat(path_.c_str(), &info) == 0) {
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
}

SocketFile::SocketFile(SocketFile&& other) noexcept
    : path_(std::exchange(other.path_, {})), device_(other.device_), inode_(other.inode_) {}

SocketFile::~SocketFile() {
  struct stat info {};
  if (path_.empty() || lstat(path_.c_str(), &info) != 0) return;
  if (info.st_dev == device_ && info.st_ino == inode_) unlink(path_.c_str());
}

Result<Listener> Listen(asio::io_context& context, const HttpOptions& options) {
  if (!options.unix_socket.empty()) return ListenAtFile(context, options.unix_socket);
  return ListenAtAddress(context, options);
}

}  // namespace fathom::http
