#include "server/api_error.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

namespace fathom {
namespace {

std::string_view ErrorType(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 404:
      return "NotFoundError";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Request Entity Too Large";
    case 422:
      return "UnprocessableEntityError";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "NotImplementedError";
    case 503:
      return "Service Unavailable";
    default:
      return "InternalServerError";
  }
}

}  // namespace

RequestError NotSupported(std::string_view param) {
  return {422, std::string(param) + " is not supported by this version", std::string(param), {}};
}

RequestError FromStatus(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return {400, status.message(), {}, {}};
    case StatusCode::kNotFound:
      return {404, status.message(), {}, {}};
    case StatusCode::kUnimplemented:
      return {422, status.message(), {}, {}};
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      return {503, status.message(), {}, {}};
    default:
      // The client gets no paths of this machine; whoever runs it gets the whole message.
      spdlog::error("request failed: {}", status.ToString());
      return {
          500, "the engine failed (" + std::string(StatusCodeName(status.code())) + ")", {}, {}};
  }
}

std::string ErrorBody(const RequestError& error) {
  nlohmann::ordered_json inner;
  inner["message"] = error.message;
  inner["type"] = ErrorType(error.http_status);
  inner["param"] =
      error.param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param);
  if (error.code.empty()) {
    inner["code"] = error.http_status;
  } else {
    inner["code"] = error.code;
  }
  nlohmann::ordered_json body;
  body["error"] = std::move(inner);
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

http::Response ErrorResponse(const RequestError& error) {
  http::Response response{error.http_status, "application/json", {}, ErrorBody(error)};
  if (error.http_status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace fathom
