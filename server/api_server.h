// ApiServer: the OpenAI-compatible HTTP API over one engine.
//
// Life: Start binds and answers 503 while the model loads; Serve makes it ready; Shutdown drains.
// Methods may be called from any thread but the server's own; each once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "server/answer_format.h"
#include "server/cors.h"
#include "server/http/http_server.h"
#include "server/model_names.h"
#include "server/text_front_end.h"

namespace fathom {

using TlsOptions = http::TlsOptions;

struct ApiServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;                         // 0: any free port
  std::string version;                          // of fathom, for /version
  std::vector<std::string> served_model_names;  // at least one
  std::vector<ModelAlias> model_aliases;        // besides deepseek-chat and deepseek-reasoner
  std::vector<std::string> api_keys;            // none: open to everyone
  int requests_per_minute = 0;                  // of each key; 0: no limit
  ReasoningField reasoning_field = ReasoningField::kBoth;
  int max_logprobs = 20;
  bool dev_endpoints = false;        // POST /reset_prefix_cache
  bool force_include_usage = false;  // streams end with usage although nobody asked

  size_t max_body_bytes = size_t{64} << 20;
  // Of all requests that are being read or parsed; what goes beyond is refused with 503.
  size_t max_total_body_bytes = size_t{1} << 30;
  size_t max_header_bytes = size_t{16} << 10;
  int max_connections = 1024;
  int io_threads = 2;
  int worker_threads = 2;  // parse requests and encode prompts
  std::chrono::milliseconds header_timeout{15'000};
  std::chrono::milliseconds body_timeout{120'000};
  std::chrono::milliseconds keep_alive_interval{10'000};  // SSE comments
  // /health turns 503 when the engine has had work for so long without ending a step.
  std::chrono::milliseconds watchdog_timeout{60'000};

  int stream_interval = 1;       // tokens between two writes of a stream, the first one apart
  bool auto_tool_choice = true;  // off: tool_choice auto is a 400
  bool parse_tools = true;       // off: markup of calls stays in the content
  bool parse_reasoning = true;   // off: reasoning stays in the content, with its marks
  bool access_log = true;        // a line per HTTP request
  bool log_requests = false;     // a line per generation, with ids and times
  int64_t max_log_len = 0;       // characters of the prompt in that line
  CorsOptions cors;
  TlsOptions tls;
  // In front of all routes, as a proxy leaves it; they answer without it, too. Empty: nothing.
  std::string root_path;
  std::string unix_socket;  // path to listen at in place of host and port; empty: not
  std::string response_role = "assistant";
  bool return_tokens_as_token_ids = false;  // logprobs show "token_id:N", whatever a request says
  bool request_id_headers = false;          // answers carry X-Request-Id
  bool track_load = false;                  // off: /load answers 0
};

// What a request that says nothing gets: of the model's generation_config.json.
struct ModelDefaults {
  double temperature = 1.0;
  double top_p = 1.0;
  int top_k = 0;  // 0: off
};

class ApiServer {
 public:
  // kInvalidArgument or kUnavailable when the address cannot be bound, a file of TLS cannot be used
  // or an option makes no sense.
  static Result<std::unique_ptr<ApiServer>> Start(ApiServerOptions options);
  ~ApiServer();  // Shutdown(0) unless that was called
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  [[nodiscard]] const std::string& address() const;
  [[nodiscard]] int port() const;
  // For people: "https://127.0.0.1:8000/v1", "http://[::1]:8000/root/v1", or the path of the Unix
  // socket and what is asked there: "unix:/run/fathom.sock /v1".
  [[nodiscard]] std::string url() const;

  // Both must outlive this object. The engine must be destroyed after it, or have no request left.
  void Serve(Engine* engine, const TextFrontEnd* front_end, const ModelDefaults& defaults = {});

  // /health and /readiness turn 503 and no connection is accepted any more; requests may finish
  // within `timeout`; the others are aborted: streams get finish_reason "abort" and an error event,
  // the rest a 503.
  void Shutdown(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  explicit ApiServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace fathom
