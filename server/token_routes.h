// POST /tokenize and /detokenize: text to token ids and back, without generating anything.
#pragma once

#include "server/generation_route.h"
#include "server/http/message.h"

namespace fathom {

// Of a `prompt`, as /v1/completions would encode it, or of `messages`, as /v1/chat/completions
// would.
http::Response Tokenize(const GenerationRoute& route, const http::Request& request);
http::Response Detokenize(const GenerationRoute& route, const http::Request& request);

}  // namespace fathom
