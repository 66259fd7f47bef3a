// Why a request is refused, as the error body of the HTTP API needs it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom {

struct RequestError {
  int http_status = 400;
  std::string message;
  std::string param;  // dotted path of the field at fault, such as messages.0.role; empty: null
  std::string code;   // empty: the HTTP status as a number
};

RequestError BadRequest(std::string param, std::string message);

// `value` in double quotes for a message: at most 200 bytes of it, cut between characters, so that
// an answer cannot be made much larger than what matters of the request.
std::string QuoteForError(std::string_view value);

}  // namespace fathom

// For functions that return std::optional<RequestError>: none means success.
#define FATHOM_RETURN_IF_REQUEST_ERROR(expr) \
  if (std::optional<::fathom::RequestError> request_error = (expr)) return request_error
