// The head of a request as handlers see it. Internal to server/http.
#pragma once

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <string_view>

#include "server/http/message.h"

namespace fathom::http {

// "Gzip" to "gzip"; other bytes than letters of ASCII stay.
std::string LowerCase(std::string_view text);

// What the parser has read so far; an empty path where that is no request line.
Request HeadOf(const boost::beast::http::request_header<>& head);

// What the bytes of a head say that never became whole, so that its refusal, too, is logged by path
// and has the headers and the form that the path and the origin ask for. Lines that are not plainly
// well-formed are left out.
Request GuessHead(std::string_view bytes);
// The same of bytes that begin after the request line, added to `head`.
void GuessFields(std::string_view bytes, Request* head);

}  // namespace fathom::http
