#include "server/field_names.h"

#include <string_view>

namespace fathom {
namespace {

bool IsOrIsInside(std::string_view path, std::string_view name) {
  return path.starts_with(name) && (path.size() == name.size() || path[name.size()] == '.');
}

}  // namespace

void FieldNames::Add(std::string chat, std::string original) {
  names_.emplace_back(std::move(chat), std::move(original));
}

void FieldNames::Restore(RequestError* error) const {
  for (const auto& [chat, original] : names_) {
    if (!IsOrIsInside(error->param, chat)) continue;
    const size_t at = error->message.find(error->param);
    if (at != std::string::npos) error->message.replace(at, chat.size(), original);
    error->param.replace(0, chat.size(), original);
    return;
  }
}

}  // namespace fathom
