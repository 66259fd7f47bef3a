// The POST routes /v1/chat/completions and /v1/completions: from an HTTP request to a
// GenerationJob.
#pragma once

#include <chrono>
#include <string>

#include "engine/engine.h"
#include "server/answer_format.h"
#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/generation.h"
#include "server/http/message.h"
#include "server/model_names.h"
#include "server/request_fields.h"
#include "server/text_front_end.h"

namespace fathom {

struct GenerationRoute {
  const Engine* engine = nullptr;
  const TextFrontEnd* front_end = nullptr;
  const ModelNames* names = nullptr;
  const ApiKeys* keys = nullptr;
  RequestLimits limits;
  ReasoningField reasoning_field = ReasoningField::kBoth;
  bool force_include_usage = false;
  std::chrono::milliseconds keep_alive_interval{10'000};
};

// Reads, checks and encodes; takes time in proportion to the body. Everything is known to be
// servable afterwards but for the engine's queue.
MaybeError BuildJob(const GenerationRoute& route, const http::Request& request, GenerationJob* job);

// 404 with the asked name and those that are served.
RequestError UnknownModel(std::string_view asked, const ModelNames& names);

}  // namespace fathom
