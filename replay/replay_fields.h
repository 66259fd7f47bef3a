// ReplayFields: reads the members of one object of a replay file, naming what is wrong.
//
// Keeps the first error, so that readers need not look after every field. Single-threaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/json_value.h"

namespace fathom {

class ReplayFields {
 public:
  // `object` and `defaults` (may be null) must outlive this. Members of `defaults` stand for those
  // that `object` lacks. `where` begins messages.
  ReplayFields(const JsonValue& object, const JsonValue* defaults, std::string where);

  // Null when absent.
  const JsonValue* Find(std::string_view name);
  bool Has(std::string_view name) { return Find(name) != nullptr; }

  // Absent members leave `out` as it is.
  void Read(std::string_view name, int64_t min, int64_t max, int64_t* out);
  void Read(std::string_view name, double min, double max, double* out);
  void Read(std::string_view name, bool* out);
  void Read(std::string_view name, std::string* out);
  // A string, or a list of strings.
  void Read(std::string_view name, std::vector<std::string>* out);
  // One of `choices`; its index.
  void ReadChoice(std::string_view name, const std::vector<std::string_view>& choices, size_t* out);

  // "answers[2].times: ...".
  Status Problem(std::string_view name, const std::string& what) const;
  void Fail(Status status);
  [[nodiscard]] const std::string& where() const { return where_; }
  // The first error; else one about members that nobody asked for.
  Status Finish();

 private:
  void WrongType(std::string_view name, const JsonValue& value, std::string_view wanted);

  const JsonValue& object_;
  const JsonValue* defaults_;
  std::string where_;
  std::vector<std::string> known_;
  Status status_;
};

}  // namespace fathom
