// Runs one request on an engine and hands its text over as it comes.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/text_front_end.h"

namespace fathom::cli {

struct RequestOutcome {
  std::string reasoning;
  std::string content;
  std::vector<TokenEvent> tokens;  // the end token included
  FinishReason reason = FinishReason::kStop;
  std::optional<std::string> stop_string;
  size_t prompt_tokens = 0;
  double prefill_seconds = 0.0;  // until the first token
  double decode_seconds = 0.0;   // from the first token to the last

  // "stop", "length" or "abort".
  [[nodiscard]] const char* FinishName() const;
  // "19 prompt tokens in 0.01 s (1900 tokens/s), 117 tokens in 0.3 s (390 tokens/s)".
  [[nodiscard]] std::string Timing() const;
};

// Blocks until the request ended. `on_delta` gets text as it comes. Setting `interrupt` aborts the
// request; what came until then is in the outcome. Errors are those of Submit and of the engine.
Result<RequestOutcome> RunRequest(Engine& engine, const TextFrontEnd& front_end,
                                  GenerateRequest request, const OutputOptions& output,
                                  const std::function<void(const OutputDelta&)>& on_delta,
                                  const std::atomic<bool>& interrupt);

}  // namespace fathom::cli
