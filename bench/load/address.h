// Where requests go and how they begin. Internal to bench/load.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "bench/load/base_url.h"

namespace fathom::load {

// The first address of the host that accepts a connection, else its first one: localhost often has
// two, of which a server has one. kUnavailable where the name has none.
Result<boost::asio::ip::tcp::endpoint> Resolve(const BaseUrl& url);

// Request line, Host, and the key where there is one; headers may follow. kInvalidArgument for a
// key that is no header.
Result<std::string> RequestHead(std::string_view method, const BaseUrl& url, std::string_view path,
                                std::string_view api_key);

}  // namespace fathom::load
