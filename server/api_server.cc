#include "server/api_server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/log_fields.h"
#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/generation.h"
#include "server/generation_route.h"
#include "server/http/http_server.h"
#include "server/json_text.h"
#include "server/messages_error.h"
#include "server/metrics.h"
#include "server/model_list.h"
#include "server/output_constraint.h"
#include "server/rate_limit.h"
#include "server/token_routes.h"
#include "server/watchdog.h"

namespace fathom {
namespace {

using WriterPtr = std::shared_ptr<http::ResponseWriter>;

// After an abort at shutdown: until the last bytes are out.
constexpr std::chrono::milliseconds kAbortGrace{2'000};
constexpr std::string_view kModelsPrefix = "/v1/models/";
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

constexpr std::string_view kMessagesPath = "/v1/messages";
constexpr std::string_view kResponsesPrefix = "/v1/responses/";

enum class Action {
  kGenerate,
  kCountTokens,
  kTokenize,
  kDetokenize,
  kModels,
  kModel,
  kStoredResponse,
  kVersion,
  kLoad,
  kHealth,
  kLiveness,
  kMetrics,
  kReset,
};

struct Route {
  std::string_view path;  // ends with a slash where something follows
  Action action;
  bool get = true, post = false;
  bool is_guarded = false;  // by API keys
  bool is_work = false;     // takes time: on a worker thread
  bool is_dev = false;      // with --enable-dev-endpoints only
};

constexpr Route kRoutes[] = {
    {"/v1/chat/completions", Action::kGenerate, false, true, true, true},
    {"/v1/completions", Action::kGenerate, false, true, true, true},
    {"/v1/responses", Action::kGenerate, false, true, true, true},
    {kMessagesPath, Action::kGenerate, false, true, true, true},
    {"/v1/messages/count_tokens", Action::kCountTokens, false, true, true, true},
    {"/tokenize", Action::kTokenize, false, true, true, true},
    {"/detokenize", Action::kDetokenize, false, true, true, true},
    {"/v1/models", Action::kModels, true, false, true},
    {kModelsPrefix, Action::kModel, true, false, true},
    {kResponsesPrefix, Action::kStoredResponse, true, true, true},
    {"/version", Action::kVersion},
    {"/load", Action::kLoad},
    {"/health", Action::kHealth},
    {"/readiness", Action::kHealth},
    {"/ping", Action::kHealth, true, true},
    // That a request is answered at all says that the process lives.
    {"/liveness", Action::kLiveness},
    {"/metrics", Action::kMetrics},
    {"/reset_prefix_cache", Action::kReset, false, true, true, false, true},
};

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

const Route* FindRoute(std::string_view path) {
  for (const Route& route : kRoutes) {
    const bool is_prefix = route.path.back() == '/';
    if (is_prefix ? StartsWith(path, route.path) : path == route.path) return &route;
  }
  return nullptr;
}

// In the form of the API that the path belongs to.
http::Response Failure(std::string_view path, const RequestError& error) {
  return StartsWith(path, kMessagesPath) ? MessagesErrorResponse(error) : ErrorResponse(error);
}

// Paths come from clients: no control characters and no kilobytes in the log.
std::string LogSafe(std::string_view path) {
  std::string safe(path.substr(0, 200));
  for (char& c : safe) {
    if (c < 0x21 || c > 0x7e) c = '?';
  }
  return safe;
}

void LogAccess(const http::AccessRecord& record) {
  const std::string path = record.path.empty() ? "-" : LogSafe(record.path);
  const std::string method = record.method.empty() ? "-" : record.method;
  LogFields fields = LogFields::ForPrograms();
  fields.Add("method", method)
      .Add("path", path)
      .Add("status", record.status)
      .Add("bytes", static_cast<int64_t>(record.sent_bytes))
      .Add("ms", static_cast<int64_t>(record.duration.count()));
  spdlog::info("{} {} {} {} bytes {} ms{}{}", method, path, record.status, record.sent_bytes,
               record.duration.count(), record.client_left ? " (client left)" : "", fields.Text());
}

}  // namespace

struct ApiServer::Impl {
  Impl(ApiServerOptions o, CorsPolicy c)
      : options(std::move(o)),
        cors(std::move(c)),
        names(options.served_model_names, options.model_aliases),
        keys(options.api_keys),
        rate_limit(options.api_keys.size(), options.requests_per_minute),
        metrics(std::make_shared<ServerMetrics>(options.served_model_names.front())),
        started(std::time(nullptr)) {}

  enum class State { kLoading, kReady, kDraining };

  // On a connection's strand.
  void Handle(http::Request request, WriterPtr writer);
  void Answer(Action action, const http::Request& request, const WriterPtr& writer);
  void Work(Action action, http::Request request, WriterPtr writer,
            RequestRecord::Clock::time_point arrival);
  // The path as the routes know it: without root_path.
  [[nodiscard]] std::string_view RoutePath(std::string_view path) const;
  // Empty where the request may go on.
  [[nodiscard]] std::optional<http::Response> CheckKey(const Route* route,
                                                       const http::Request& request);
  [[nodiscard]] GenerationRoute NewGenerationRoute() const;
  [[nodiscard]] MaybeError CheckReady() const;
  // And whether the engine gets on. Requests are taken all the same: they wait.
  [[nodiscard]] MaybeError CheckHealth() const;

  const ApiServerOptions options;
  const CorsPolicy cors;
  const ModelNames names;
  const ApiKeys keys;
  RateLimit rate_limit;
  const std::shared_ptr<ServerMetrics> metrics;  // last owner: see Generation
  const int64_t started;
  // Generations that are not answered yet; they may outlive this object.
  const std::shared_ptr<std::atomic<int>> in_flight = std::make_shared<std::atomic<int>>(0);
  // Written once, before `state` turns ready.
  Engine* engine = nullptr;
  const TextFrontEnd* front_end = nullptr;
  ModelDefaults defaults;
  std::unique_ptr<ConstraintFactory> constraints;
  std::unique_ptr<Watchdog> watchdog;
  std::atomic<State> state{State::kLoading};

  std::mutex mutex;  // guards what follows
  bool aborting = false;
  std::vector<std::weak_ptr<Generation>> running;
  std::unique_ptr<http::HttpServer> server;  // last: its threads use what is above
};

MaybeError ApiServer::Impl::CheckReady() const {
  switch (state.load()) {
    case State::kLoading:
      return RequestError{503, "the model is still loading", {}, {}};
    case State::kDraining:
      return RequestError{503, "the server is shutting down", {}, {}};
    case State::kReady:
      break;
  }
  return std::nullopt;
}

MaybeError ApiServer::Impl::CheckHealth() const {
  if (MaybeError error = CheckReady()) return error;
  std::optional<std::string> stall = watchdog->Stall();
  if (!stall) return std::nullopt;
  return RequestError{503, "the engine makes " + *std::move(stall), {}, {}};
}

std::string_view ApiServer::Impl::RoutePath(std::string_view path) const {
  const std::string& root = options.root_path;
  if (root.empty() || !StartsWith(path, root)) return path;
  const std::string_view rest = path.substr(root.size());
  if (rest.empty()) return "/";
  return rest.front() == '/' ? rest : path;  // "/rooted" is not below "/root"
}

std::optional<http::Response> ApiServer::Impl::CheckKey(const Route* route,
                                                        const http::Request& request) {
  const bool is_guarded = route == nullptr ? StartsWith(request.path, "/v1") : route->is_guarded;
  if (!is_guarded || keys.size() == 0 || request.method == "OPTIONS") return std::nullopt;
  const std::optional<size_t> key = keys.Find(request);
  if (!key) {
    http::Response response =
        Failure(request.path, {401, "the API key is missing or wrong", {}, {}});
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (route == nullptr || !route->is_work) return std::nullopt;
  const std::optional<int> wait_s = rate_limit.Refuse(*key, RateLimit::Clock::now());
  if (!wait_s) return std::nullopt;
  http::Response response = Failure(
      request.path, {429,
                     "this API key may send " + std::to_string(options.requests_per_minute) +
                         " requests a minute; the next in " + std::to_string(*wait_s) + " s",
                     {},
                     {}});
  response.headers.emplace_back("Retry-After", std::to_string(*wait_s));
  return response;
}

void ApiServer::Impl::Handle(http::Request request, WriterPtr writer) {
  // Before keys: a browser asks without one whether it may send one.
  if (cors.IsPreflight(request)) return writer->Send(cors.AnswerPreflight(request));
  if (!options.root_path.empty()) request.path = std::string(RoutePath(request.path));
  const std::string_view path = request.path;
  const Route* route = FindRoute(path);
  if (route != nullptr && route->is_dev && !options.dev_endpoints) route = nullptr;
  // These two answer in every state, so that loading and draining show and nobody ends a process
  // for them; the others, even those that do not exist, say that the model is not there yet.
  const bool is_always_there =
      route != nullptr && (route->action == Action::kLiveness || route->action == Action::kMetrics);
  if (state == State::kLoading && !is_always_there) {
    if (MaybeError error = CheckReady()) return writer->Send(Failure(path, *error));
  }
  if (auto refusal = CheckKey(route, request)) return writer->Send(*std::move(refusal));
  if (route == nullptr) {
    return writer->Send(Failure(path, {404, "no such route: " + QuoteForError(path), {}, {}}));
  }
  const bool allowed =
      (request.method == "GET" && route->get) || (request.method == "POST" && route->post);
  if (!allowed) {
    const RequestError error{
        405, QuoteForError(path) + " does not answer " + QuoteForError(request.method), {}, {}};
    http::Response response = Failure(path, error);
    response.headers.emplace_back("Allow", !route->post ? "GET"
                                           : route->get ? "GET, POST"
                                                        : "POST");
    return writer->Send(std::move(response));
  }
  if (route->action == Action::kLiveness) return writer->Send({200, "", {}, ""});
  if (route->action == Action::kMetrics) {
    return writer->Send({200, kMetricsType, {}, metrics->Expose()});
  }
  const bool is_health = route->action == Action::kHealth;
  if (MaybeError error = is_health ? CheckHealth() : CheckReady()) {
    return writer->Send(Failure(path, *error));
  }
  if (!route->is_work) return Answer(route->action, request, writer);
  // Large bodies take a while to parse and encode; other connections go on meanwhile.
  server->PostWork([this, action = route->action, request = std::move(request),
                    writer = std::move(writer), arrival = RequestRecord::Clock::now()]() mutable {
    Work(action, std::move(request), std::move(writer), arrival);
  });
}

// What takes no time.
void ApiServer::Impl::Answer(Action action, const http::Request& request, const WriterPtr& writer) {
  const std::string_view path = request.path;
  auto send_json = [&writer](std::string body) {
    writer->Send({200, "application/json", {}, std::move(body)});
  };
  const int64_t max_model_len = engine->info().max_model_len;
  switch (action) {
    case Action::kVersion:
      return send_json("{\"version\":" + JsonString(options.version) + "}");
    case Action::kLoad:
      return send_json(
          "{\"server_load\":" + std::to_string(options.track_load ? in_flight->load() : 0) + "}");
    case Action::kModels:
      return send_json(ModelListJson(names.served(), started, max_model_len));
    case Action::kModel: {
      const std::string asked = http::PercentDecode(path.substr(kModelsPrefix.size()));
      const auto match = asked.empty() ? std::nullopt : names.Find(asked);
      if (!match) return writer->Send(ErrorResponse(UnknownModel(asked, names)));
      return send_json(ModelJson(match->name, started, max_model_len));
    }
    case Action::kStoredResponse:
      return writer->Send(
          ErrorResponse({404, "no such response: this server keeps none", "response_id", {}}));
    case Action::kReset:
      engine->ResetPrefixCache();
      return writer->Send({200, "", {}, ""});
    default:
      return writer->Send({200, "", {}, ""});
  }
}

// On a worker thread.
void ApiServer::Impl::Work(Action action, http::Request request, WriterPtr writer,
                           RequestRecord::Clock::time_point arrival) {
  const GenerationRoute route = NewGenerationRoute();
  switch (action) {
    case Action::kTokenize:
      return writer->Send(Tokenize(route, request));
    case Action::kDetokenize:
      return writer->Send(Detokenize(route, request));
    case Action::kCountTokens: {
      int64_t count = 0;
      if (MaybeError error = CountMessagesTokens(route, request, &count)) {
        return writer->Send(MessagesErrorResponse(*error));
      }
      return writer->Send(
          {200, "application/json", {}, "{\"input_tokens\":" + std::to_string(count) + "}"});
    }
    default:
      break;
  }
  GenerationJob job;
  if (MaybeError error = BuildJob(route, request, &job)) {
    return writer->Send(Failure(request.path, *error));
  }
  job.arrival = arrival;
  ++*in_flight;
  job.in_flight = std::shared_ptr<void>(nullptr, [load = in_flight](void*) { --*load; });
  auto generation = std::make_shared<Generation>(
      GenerationContext{engine, front_end, metrics, options.log_requests, options.max_log_len},
      writer, std::move(job));
  {
    const std::lock_guard lock(mutex);
    if (aborting) return writer->Send(Failure(request.path, *CheckReady()));
    running.erase(std::remove_if(running.begin(), running.end(),
                                 [](const auto& weak) { return weak.expired(); }),
                  running.end());
    running.push_back(generation);
  }
  generation->Start();
}

GenerationRoute ApiServer::Impl::NewGenerationRoute() const {
  GenerationRoute route;
  route.engine = engine;
  route.front_end = front_end;
  route.names = &names;
  route.keys = &keys;
  route.constraints = constraints.get();
  route.limits.vocab_size = engine->info().vocab_size;
  route.limits.max_logprobs = options.max_logprobs;
  route.limits.default_temperature = defaults.temperature;
  route.limits.default_top_p = defaults.top_p;
  route.limits.default_top_k = defaults.top_k;
  route.limits.priority_scheduling = engine->info().priority_scheduling;
  route.limits.tokens_as_ids = options.return_tokens_as_token_ids;
  route.reasoning_field = options.reasoning_field;
  route.response_role = options.response_role;
  route.force_include_usage = options.force_include_usage;
  route.auto_tool_choice = options.auto_tool_choice;
  route.parse_tools = options.parse_tools;
  route.parse_reasoning = options.parse_reasoning;
  route.request_id_headers = options.request_id_headers;
  route.stream_interval = options.stream_interval;
  route.keep_alive_interval = options.keep_alive_interval;
  return route;
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ApiServer::~ApiServer() { Shutdown(std::chrono::milliseconds(0)); }

Result<std::unique_ptr<ApiServer>> ApiServer::Start(ApiServerOptions options) {
  if (options.served_model_names.empty()) return InvalidArgument("no served model name");
  if (options.requests_per_minute > 0 && options.api_keys.empty()) {
    return InvalidArgument("requests_per_minute limits API keys, and there are none");
  }
  while (!options.root_path.empty() && options.root_path.back() == '/')
    options.root_path.pop_back();
  if (!options.root_path.empty() && options.root_path.front() != '/') {
    options.root_path.insert(0, "/");
  }
  FATHOM_ASSIGN_OR_RETURN(CorsPolicy cors, CorsPolicy::Create(options.cors));
  auto impl = std::make_unique<Impl>(std::move(options), std::move(cors));
  http::HttpOptions http_options;
  http_options.host = impl->options.host;
  http_options.port = impl->options.port;
  http_options.unix_socket = impl->options.unix_socket;
  http_options.tls = impl->options.tls;
  http_options.io_threads = impl->options.io_threads;
  http_options.worker_threads = impl->options.worker_threads;
  http_options.max_connections = impl->options.max_connections;
  http_options.max_body_bytes = impl->options.max_body_bytes;
  http_options.max_total_body_bytes = impl->options.max_total_body_bytes;
  http_options.max_header_bytes = impl->options.max_header_bytes;
  http_options.header_timeout = impl->options.header_timeout;
  http_options.body_timeout = impl->options.body_timeout;
  http_options.handler = [raw = impl.get()](http::Request request, WriterPtr writer) {
    raw->Handle(std::move(request), std::move(writer));
  };
  http_options.error_response = [raw = impl.get()](int status, std::string_view path,
                                                   std::string_view message) {
    return Failure(raw->RoutePath(path), {status, std::string(message), {}, {}});
  };
  if (!impl->options.cors.allowed_origins.empty()) {
    http_options.response_headers = [raw = impl.get()](const http::Request& request) {
      return raw->cors.HeadersFor(request);
    };
  }
  if (impl->options.access_log) http_options.access_log = LogAccess;
  FATHOM_ASSIGN_OR_RETURN(impl->server, http::HttpServer::Start(std::move(http_options)));
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

const std::string& ApiServer::address() const { return impl_->server->address(); }

int ApiServer::port() const { return impl_->server->port(); }

std::string ApiServer::url() const {
  const ApiServerOptions& options = impl_->options;
  const std::string path = options.root_path + "/v1";
  if (!options.unix_socket.empty()) return "unix:" + address() + " " + path;
  const bool is_ipv6 = address().find(':') != std::string::npos;
  return (options.tls.certificate_file.empty() ? "http://" : "https://") +
         (is_ipv6 ? "[" + address() + "]" : address()) + ":" + std::to_string(port()) + path;
}

void ApiServer::Serve(Engine* engine, const TextFrontEnd* front_end,
                      const ModelDefaults& defaults) {
  impl_->defaults = defaults;
  impl_->engine = engine;
  impl_->front_end = front_end;
  impl_->metrics->Attach(engine);
  impl_->constraints = std::make_unique<ConstraintFactory>(front_end, engine->info().eos_token_ids);
  impl_->watchdog = std::make_unique<Watchdog>(engine, impl_->options.watchdog_timeout);
  impl_->state = Impl::State::kReady;
}

void ApiServer::Shutdown(std::chrono::milliseconds timeout) {
  impl_->state = Impl::State::kDraining;
  impl_->server->Drain();
  if (!impl_->server->WaitUntilIdle(timeout)) {
    std::vector<std::weak_ptr<Generation>> running;
    {
      const std::lock_guard lock(impl_->mutex);
      impl_->aborting = true;
      running.swap(impl_->running);
    }
    for (const auto& weak : running) {
      if (const auto generation = weak.lock()) generation->AbortForShutdown();
    }
    (void)impl_->server->WaitUntilIdle(kAbortGrace);
  }
  impl_->server->Stop();
}

}  // namespace fathom
