// What is wrong with a JSON schema, before anything is made of it. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "chat/json_value.h"

namespace fathom {

// Whether `schema` is a JSON schema: kInvalidArgument naming the place, as
// `<path>.properties.a.type: ...`. Keywords that are null count as absent (clients send
// `"required": null`), as does a null schema. Unknown keywords are ignored, as the standard says;
// whether a grammar can enforce the known ones is not asked here.
Status ValidateSchema(const JsonValue& schema, std::string_view path);

// The part of `root` that a local reference (`#`, `#/$defs/x`) names. kInvalidArgument when there
// is none, kUnimplemented for references to other documents and to anchors.
Result<const JsonValue*> ResolveRef(const JsonValue& root, std::string_view ref);

// ".a" for words, "['a b']" for other keys: the continuation of a path, cut to a readable length.
std::string PathStep(std::string_view key);

}  // namespace fathom
