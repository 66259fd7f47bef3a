// ModelNames: which `model` of a request means the served model, and with which defaults.
// Immutable after Create; any thread may look up.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace fathom {

struct ModelAlias {
  std::string name;
  JsonValue chat_template_kwargs;  // an object, or null for none
};

class ModelNames {
 public:
  // At least one served name. Aliases deepseek-chat (thinking off) and deepseek-reasoner (on) are
  // added unless a served name or an alias takes the word.
  ModelNames(std::vector<std::string> served, std::vector<ModelAlias> aliases);
  // "NAME" or "NAME={...}" with default chat_template_kwargs.
  static Result<ModelAlias> ParseAlias(std::string_view text);

  struct Match {
    std::string name;                 // as the answer gives it
    const JsonValue* default_kwargs;  // never null; a null value where the name brings none
  };
  // A bracketed suffix is cut off first: "name[1m]" is "name". Empty: the first served name.
  [[nodiscard]] std::optional<Match> Find(std::string_view asked) const;

  [[nodiscard]] const std::vector<std::string>& served() const { return served_; }
  // "a, b (aliases: c, d)", for messages.
  [[nodiscard]] std::string Description() const;

 private:
  std::vector<std::string> served_;
  std::vector<ModelAlias> aliases_;
  JsonValue no_kwargs_;
};

}  // namespace fathom
