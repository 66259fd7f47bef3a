// The routes that generate: from an HTTP request to a GenerationJob.
//
// /v1/chat/completions and /v1/completions are read here; /v1/messages and /v1/responses are
// translated to chat requests first (messages_request.h, responses_request.h), so that one set of
// rules holds for all of them.
#pragma once

#include <chrono>
#include <string>

#include "chat/json_value.h"
#include "engine/engine.h"
#include "server/answer_format.h"
#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/generation.h"
#include "server/http/message.h"
#include "server/model_names.h"
#include "server/output_constraint.h"
#include "server/request_fields.h"
#include "server/text_front_end.h"

namespace fathom {

struct GenerationRoute {
  const Engine* engine = nullptr;
  const TextFrontEnd* front_end = nullptr;
  const ModelNames* names = nullptr;
  const ApiKeys* keys = nullptr;
  ConstraintFactory* constraints = nullptr;
  RequestLimits limits;
  ReasoningField reasoning_field = ReasoningField::kBoth;
  std::string response_role = "assistant";
  bool force_include_usage = false;
  bool auto_tool_choice = true;  // tools without a tool_choice are left to the model
  bool parse_tools = true;       // calls are read from the text
  bool parse_reasoning = true;
  bool request_id_headers = false;  // answers repeat X-Request-Id
  int stream_interval = 1;
  std::chrono::milliseconds keep_alive_interval{10'000};
};

// Reads, checks and encodes; takes time in proportion to the body. Everything is known to be
// servable afterwards but for the engine's queue.
MaybeError BuildJob(const GenerationRoute& route, const http::Request& request, GenerationJob* job);

// How many tokens the prompt of a /v1/messages request has.
MaybeError CountMessagesTokens(const GenerationRoute& route, const http::Request& request,
                               int64_t* count);

// The body as a JSON object; 400 for another type and for bad JSON.
MaybeError ParseBody(const http::Request& request, JsonValue* body);

// 404 with the asked name and those that are served.
RequestError UnknownModel(std::string_view asked, const ModelNames& names);

}  // namespace fathom
