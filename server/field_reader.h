// FieldReader: typed, range-checked members of a request body.
//
// The first problem is kept and everything after it reads as absent, so that a parser is a plain
// list of fields with one check at its end. A null member counts as absent. Single-threaded; the
// body must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "chat/json_value.h"
#include "server/api_error.h"

namespace fathom {

class FieldReader {
 public:
  // `path` is put before the names in errors: "stream_options".
  explicit FieldReader(const JsonValue& object, std::string path = {})
      : object_(&object), path_(std::move(path)) {}

  // Null when absent, or after a problem.
  [[nodiscard]] const JsonValue* Find(std::string_view name) const;

  bool Bool(std::string_view name, bool fallback);
  std::optional<int64_t> Int(std::string_view name, int64_t min, int64_t max);
  // Finite, min <= value <= max.
  std::optional<double> Number(std::string_view name, double min, double max);
  std::optional<std::string> String(std::string_view name);
  // A list of ids of the vocabulary.
  std::vector<TokenId> TokenIds(std::string_view name, int vocab_size);
  // A string or a list of at most `max_items` strings, none empty.
  std::vector<std::string> Strings(std::string_view name, size_t max_items);
  // The member, when it is an object.
  const JsonValue* Object(std::string_view name);

  // For rules beyond a type and a range.
  void Fail(std::string_view name, std::string message);
  void Refuse(std::string_view name);  // NotSupported
  void Merge(MaybeError error);

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  [[nodiscard]] const MaybeError& error() const { return error_; }

 private:
  void FailType(std::string_view name, std::string_view wanted, const JsonValue& found);
  [[nodiscard]] std::string PathOf(std::string_view name) const;

  const JsonValue* object_;
  std::string path_;
  MaybeError error_;
};

// Reads a list of ids; errors name `path`, with the index of a bad item.
MaybeError ReadTokenIds(const JsonValue& value, std::string_view path, int vocab_size,
                        std::vector<TokenId>* ids);

}  // namespace fathom
