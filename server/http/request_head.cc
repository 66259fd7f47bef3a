#include "server/http/request_head.h"

#include <algorithm>

namespace fathom::http {
namespace {

bool IsVisible(char c) { return c > 0x20 && c < 0x7f; }

bool IsToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
}

std::string_view WithoutQuery(std::string_view target) {
  return target.substr(0, target.find('?'));
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

void GuessRequestLine(std::string_view line, Request* head) {
  const size_t method_end = line.find(' ');
  if (method_end == std::string_view::npos || !IsToken(line.substr(0, method_end))) return;
  const std::string_view rest = line.substr(method_end + 1);
  const std::string_view target = rest.substr(0, rest.find(' '));
  if (target.empty() || !std::all_of(target.begin(), target.end(), IsVisible)) return;
  head->method = std::string(line.substr(0, method_end));
  head->path = std::string(WithoutQuery(target));
}

void GuessField(std::string_view line, Request* head) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || !IsToken(line.substr(0, colon))) return;
  const std::string_view value = Trim(line.substr(colon + 1));
  // A lone CR or LF must not get into an answer.
  const bool plain =
      std::all_of(value.begin(), value.end(), [](char c) { return c == ' ' || IsVisible(c); });
  if (plain) head->headers.emplace_back(LowerCase(line.substr(0, colon)), std::string(value));
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

Request HeadOf(const boost::beast::http::request_header<>& head) {
  Request request;
  request.method = std::string(head.method_string());
  request.path = std::string(WithoutQuery(head.target()));
  for (const auto& field : head) {
    request.headers.emplace_back(LowerCase(field.name_string()), std::string(field.value()));
  }
  return request;
}

Request GuessHead(std::string_view bytes) {
  Request head;
  const size_t line_end = bytes.find("\r\n");
  GuessRequestLine(bytes.substr(0, line_end), &head);
  if (line_end != std::string_view::npos) GuessFields(bytes.substr(line_end + 2), &head);
  return head;
}

void GuessFields(std::string_view bytes, Request* head) {
  // The last line may be cut off anywhere; half a value is worse than none.
  for (size_t end = bytes.find("\r\n"); end != std::string_view::npos; end = bytes.find("\r\n")) {
    GuessField(bytes.substr(0, end), head);
    bytes.remove_prefix(end + 2);
  }
}

}  // namespace fathom::http
