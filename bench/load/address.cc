#include "bench/load/address.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>

namespace fathom::load {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

Result<asio::ip::tcp::endpoint> Resolve(const BaseUrl& url) {
  asio::io_context context;
  ErrorCode error;
  const auto found = asio::ip::tcp::resolver(context).resolve(url.host, url.port, error);
  if (error || found.empty()) {
    return Unavailable(url.host + ": " + (error ? error.message() : "no address"));
  }
  if (found.size() > 1) {
    for (const auto& entry : found) {
      asio::ip::tcp::socket socket(context);
      socket.connect(entry.endpoint(), error);
      if (!error) return entry.endpoint();
    }
  }
  return found.begin()->endpoint();
}

Result<std::string> RequestHead(std::string_view method, const BaseUrl& url, std::string_view path,
                                std::string_view api_key) {
  const bool is_header = std::all_of(api_key.begin(), api_key.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '\x7f';
  });
  if (!is_header) return InvalidArgument("the API key has a blank or control character");
  std::string head(method);
  head.append(" ").append(url.path).append(path).append(" HTTP/1.1\r\nHost: ");
  head.append(url.Authority()).append("\r\nUser-Agent: fathom-bench\r\n");
  if (!api_key.empty()) head.append("Authorization: Bearer ").append(api_key).append("\r\n");
  return head;
}

}  // namespace fathom::load
