// LeasedBody: a body for Beast's parser, a string whose bytes are counted as they arrive.
//
// Beast's own string body reserves what a client declares, so that a head of a few bytes asks for
// as much memory as the largest body. This one grows with what was really sent. Internal to
// server/http.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <boost/system/error_code.hpp>
#include <memory>
#include <string>

#include "server/http/body_budget.h"

namespace fathom::http {

struct LeasedBody {
  struct value_type {
    std::string text;
    std::shared_ptr<BodyLease> lease;  // set before the first byte; see Request::body_lease
  };

  // Beast's BodyReader. Fails with not_enough_memory where the budget has no room.
  class reader {
   public:
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>&, boost::system::error_code& error) { error = {}; }

    template <class Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      const size_t num_bytes = boost::beast::buffer_bytes(buffers);
      if (!body_.lease->Grow(num_bytes)) {
        error = make_error_code(boost::system::errc::not_enough_memory);
        return 0;
      }
      error = {};
      for (const auto buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.text.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return num_bytes;
    }

    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

}  // namespace fathom::http
