#include "server/model_names.h"

#include <algorithm>
#include <utility>

#include "chat/chat_request.h"
#include "chat/json_parse.h"

namespace fathom {
namespace {

JsonValue ThinkingKwargs(bool thinking) {
  JsonValue::Object object;
  object.push_back({"thinking", JsonValue::Bool(thinking)});
  return JsonValue::FromObject(std::move(object));
}

std::string_view WithoutBrackets(std::string_view name) {
  const size_t open = name.find('[');
  const bool has_suffix = open != std::string_view::npos && open > 0 && name.back() == ']';
  return has_suffix ? name.substr(0, open) : name;
}

}  // namespace

ModelNames::ModelNames(std::vector<std::string> served, std::vector<ModelAlias> aliases)
    : served_(std::move(served)), aliases_(std::move(aliases)) {
  FATHOM_CHECK(!served_.empty(), "a server needs a model name");
  for (const auto& [name, thinking] :
       {std::pair{"deepseek-chat", false}, {"deepseek-reasoner", true}}) {
    if (!Find(name)) aliases_.push_back({name, ThinkingKwargs(thinking)});
  }
}

Result<ModelAlias> ModelNames::ParseAlias(std::string_view text) {
  const size_t equals = text.find('=');
  ModelAlias alias{std::string(text.substr(0, equals)), {}};
  if (alias.name.empty())
    return InvalidArgument("a model alias needs a name: " + std::string(text));
  if (equals == std::string_view::npos) return alias;
  const std::string_view json = text.substr(equals + 1);
  // Checks that it is an object of known keys with values of the right types.
  if (const auto checked = ParseChatDefaults(json); !checked.ok()) {
    return InvalidArgument("model alias " + alias.name + ": " + checked.status().message());
  }
  FATHOM_ASSIGN_OR_RETURN(alias.chat_template_kwargs, ParseJson(json));
  return alias;
}

std::optional<ModelNames::Match> ModelNames::Find(std::string_view asked) const {
  if (asked.empty()) return Match{served_.front(), &no_kwargs_};
  const std::string_view name = WithoutBrackets(asked);
  for (const std::string& served : served_) {
    if (served == name) return Match{served, &no_kwargs_};
  }
  for (const ModelAlias& alias : aliases_) {
    if (alias.name == name) return Match{alias.name, &alias.chat_template_kwargs};
  }
  return std::nullopt;
}

std::string ModelNames::Description() const {
  std::string text;
  for (const std::string& name : served_) text += (text.empty() ? "" : ", ") + name;
  text += " (aliases:";
  for (const ModelAlias& alias : aliases_) text += " " + alias.name;
  return text + ")";
}

}  // namespace fathom
