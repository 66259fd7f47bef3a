// Engine: the seam between front ends and whatever generates tokens.
//
// The local engine (engine/local_engine.h) runs a model on a backend; tests script one. All methods
// may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/engine_stats.h"
#include "engine/request.h"

namespace fathom {

using RequestId = int64_t;

struct EngineInfo {
  int vocab_size = 0;
  int64_t max_model_len = 0;  // prompt plus generated tokens
  std::vector<TokenId> eos_token_ids;
  bool priority_scheduling = false;  // else GenerateRequest::priority must be 0
};

class Engine {
 public:
  virtual ~Engine() = default;
  [[nodiscard]] virtual const EngineInfo& info() const = 0;
  // Queues a request. kInvalidArgument for values out of range (the message names the field),
  // kUnavailable when the queue is full or the engine is shutting down. The sink is kept until
  // OnFinish has returned.
  virtual Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) = 0;
  // Ends a request within one step: its sink gets OnFinish(kAborted). Unknown or finished ids are
  // ignored.
  virtual void Abort(RequestId id) = 0;
  // The same where a front end found the answer's end in its `num_tokens`-th token (a stop string):
  // what was computed in front of that token is kept for whoever continues the answer.
  virtual void EndAt(RequestId id, int64_t num_tokens) = 0;
  // Forgets all cached prefixes before the next step; running requests go on.
  virtual void ResetPrefixCache() = 0;
  [[nodiscard]] virtual int num_running() const = 0;
  [[nodiscard]] virtual int num_waiting() const = 0;
  // A consistent copy. Takes no longer than a lock that is never held during a step.
  [[nodiscard]] virtual EngineStats stats() const = 0;
};

}  // namespace fathom
