// ConstraintFactory: from what a request says of its answer (a schema, a grammar, allowed tokens, a
// tool that must be called) to the TokenConstraint that holds the engine to it.
#pragma once

#include <functional>
#include <memory>

#include "engine/token_constraint.h"
#include "server/api_error.h"
#include "server/request_fields.h"
#include "server/text_front_end.h"

namespace fathom {

using NewConstraint = std::function<std::shared_ptr<TokenConstraint>()>;

class ConstraintFactory {
 public:
  // The front end must outlive this object and what it makes.
  explicit ConstraintFactory(const TextFrontEnd* front_end);

  // `make` stays empty where every token may come. `chat` is null for plain completions. 400 for a
  // bad schema, regex or grammar, 422 for one that cannot be enforced.
  MaybeError Prepare(const ConstraintFields& fields, const ChatPrompt* chat,
                     NewConstraint* make) const;

 private:
  const TextFrontEnd* const front_end_;
};

}  // namespace fathom
