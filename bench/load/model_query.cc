#include "bench/load/model_query.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <nlohmann/json.hpp>

#include "bench/load/address.h"
#include "bench/load/answer_reader.h"

namespace fathom::load {

namespace asio = boost::asio;
namespace beast = boost::beast;
using ErrorCode = boost::system::error_code;

Result<std::string> FirstModel(const BaseUrl& url, const std::string& api_key,
                               std::chrono::milliseconds timeout) {
  FATHOM_ASSIGN_OR_RETURN(std::string request, RequestHead("GET", url, "/v1/models", api_key));
  request += "Connection: close\r\n\r\n";
  FATHOM_ASSIGN_OR_RETURN(const asio::ip::tcp::endpoint address, Resolve(url));

  asio::io_context context;
  beast::tcp_stream stream(context);
  beast::flat_buffer buffer;
  beast::http::response_parser<beast::http::string_body> parser;  // with its limit of 8 MB
  ErrorCode error;
  stream.expires_after(timeout);
  stream.async_connect(address, [&](ErrorCode connect_error) {
    if ((error = connect_error)) return;
    asio::async_write(stream, asio::buffer(request), [&](ErrorCode write_error, size_t) {
      if ((error = write_error)) return;
      beast::http::async_read(stream, buffer, parser,
                              [&](ErrorCode read_error, size_t) { error = read_error; });
    });
  });
  context.run();
  const std::string where = "http://" + url.Authority() + url.path + "/v1/models: ";
  if (error) return Unavailable(where + error.message());

  const int status = static_cast<int>(parser.get().result_int());
  const std::string& body = parser.get().body();
  if (status != 200) {
    return Unavailable(where + std::to_string(status) + ", " + ErrorMessage(body));
  }
  const auto json = nlohmann::json::parse(body, nullptr, false);
  const auto id = nlohmann::json::json_pointer("/data/0/id");
  if (!json.is_object() || !json.contains(id) || !json.at(id).is_string()) {
    return DataLoss(where + "no list of models");
  }
  return json.at(id).get<std::string>();
}

}  // namespace fathom::load
