#include "server/messages_error.h"

#include "server/json_text.h"

namespace fathom {
namespace {

constexpr int kOverloaded = 529;

std::string_view ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

std::string MessagesErrorBody(const RequestError& error) {
  // Anthropic has no member for the field at fault.
  std::string message = error.message;
  if (!error.param.empty() && message.find(error.param) == std::string::npos) {
    message = error.param + ": " + message;
  }
  std::string out = "{\"type\":\"error\",\"error\":{\"type\":";
  AppendJsonString(ErrorType(error.http_status), &out);
  out += ",\"message\":";
  AppendJsonString(message, &out);
  out += "}}";
  return out;
}

http::Response MessagesErrorResponse(const RequestError& error) {
  http::Response response = ErrorResponse(error);
  if (response.status == 503) response.status = kOverloaded;
  response.body = MessagesErrorBody(error);
  return response;
}

}  // namespace fathom
