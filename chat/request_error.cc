#include "chat/request_error.h"

#include <utility>

namespace fathom {

RequestError BadRequest(std::string param, std::string message) {
  RequestError error;
  error.message = std::move(message);
  error.param = std::move(param);
  return error;
}

std::string QuoteForError(std::string_view value) {
  constexpr size_t kMaxBytes = 200;
  if (value.size() <= kMaxBytes) return '"' + std::string(value) + '"';
  size_t end = kMaxBytes;
  while (end > 0 && (static_cast<unsigned char>(value[end]) & 0xC0) == 0x80) --end;
  return '"' + std::string(value.substr(0, end)) + "...\"";
}

}  // namespace fathom
