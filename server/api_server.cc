#include "server/api_server.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/generation.h"
#include "server/generation_route.h"
#include "server/http/http_server.h"
#include "server/metrics.h"
#include "server/watchdog.h"

namespace fathom {
namespace {

using WriterPtr = std::shared_ptr<http::ResponseWriter>;

// After an abort at shutdown: until the last bytes are out.
constexpr std::chrono::milliseconds kAbortGrace{2'000};
constexpr std::string_view kModelsPrefix = "/v1/models/";
constexpr char kMetricsType[] = "text/plain; version=0.0.4; charset=utf-8";

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
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
  spdlog::info("{} {} {} {} bytes {} ms{}", record.method.empty() ? "-" : record.method,
               record.path.empty() ? "-" : LogSafe(record.path), record.status, record.sent_bytes,
               record.duration.count(), record.client_left ? " (client left)" : "");
}

}  // namespace

struct ApiServer::Impl {
  explicit Impl(ApiServerOptions o)
      : options(std::move(o)),
        names(options.served_model_names, options.model_aliases),
        keys(options.api_keys),
        metrics(std::make_shared<ServerMetrics>(options.served_model_names.front())),
        started(std::time(nullptr)) {}

  enum class State { kLoading, kReady, kDraining };

  // On a connection's strand.
  void Handle(http::Request request, WriterPtr writer);
  void Get(const http::Request& request, const WriterPtr& writer);
  void Generate(http::Request request, WriterPtr writer, RequestRecord::Clock::time_point arrival);
  [[nodiscard]] MaybeError CheckReady() const;
  // And whether the engine gets on. Requests are taken all the same: they wait.
  [[nodiscard]] MaybeError CheckHealth() const;

  const ApiServerOptions options;
  const ModelNames names;
  const ApiKeys keys;
  const std::shared_ptr<ServerMetrics> metrics;  // last owner: see Generation
  const int64_t started;
  // Written once, before `state` turns ready.
  Engine* engine = nullptr;
  const TextFrontEnd* front_end = nullptr;
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

void ApiServer::Impl::Handle(http::Request request, WriterPtr writer) {
  const std::string_view path = request.path;
  const bool is_generation = path == "/v1/chat/completions" || path == "/v1/completions";
  const bool is_health = path == "/health" || path == "/readiness" || path == "/ping";
  // That a request is answered at all says that the process lives.
  const bool is_liveness = path == "/liveness";
  const bool is_metrics = path == "/metrics";
  const bool is_reset = path == "/reset_prefix_cache" && options.dev_endpoints;
  const bool is_get = is_health || is_liveness || is_metrics || path == "/version" ||
                      path == "/v1/models" || StartsWith(path, kModelsPrefix);
  if ((StartsWith(path, "/v1") || is_reset) && !keys.Allows(request.Header("authorization"))) {
    http::Response response = ErrorResponse({401, "the API key is missing or wrong", {}, {}});
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return writer->Send(std::move(response));
  }
  if (!is_generation && !is_get && !is_reset) {
    return writer->Send(ErrorResponse({404, "no such route: " + QuoteForError(path), {}, {}}));
  }
  const bool allowed =
      is_generation || is_reset
          ? request.method == "POST"
          : request.method == "GET" || (path == "/ping" && request.method == "POST");
  if (!allowed) {
    http::Response response = ErrorResponse(
        {405, QuoteForError(path) + " does not answer " + QuoteForError(request.method), {}, {}});
    response.headers.emplace_back("Allow", is_generation || is_reset ? "POST"
                                           : path == "/ping"         ? "GET, POST"
                                                                     : "GET");
    return writer->Send(std::move(response));
  }
  // In every state, so that loading and draining show and nobody ends a process for them.
  if (is_liveness) return writer->Send({200, "", {}, ""});
  if (is_metrics) return writer->Send({200, kMetricsType, {}, metrics->Expose()});
  if (MaybeError error = is_health ? CheckHealth() : CheckReady()) {
    return writer->Send(ErrorResponse(*error));
  }
  if (is_health) return writer->Send({200, "", {}, ""});
  if (is_get) return Get(request, writer);
  if (is_reset) {
    engine->ResetPrefixCache();
    return writer->Send({200, "", {}, ""});
  }
  // Large bodies take a while to parse and encode; other connections go on meanwhile.
  server->PostWork([this, request = std::move(request), writer = std::move(writer),
                    arrival = RequestRecord::Clock::now()]() mutable {
    Generate(std::move(request), std::move(writer), arrival);
  });
}

void ApiServer::Impl::Get(const http::Request& request, const WriterPtr& writer) {
  const std::string_view path = request.path;
  auto send_json = [&writer](std::string body) {
    writer->Send({200, "application/json", {}, std::move(body)});
  };
  if (path == "/version") {
    return send_json(nlohmann::json{{"version", options.version}}.dump());
  }
  const int64_t max_model_len = engine->info().max_model_len;
  if (path == "/v1/models") {
    return send_json(ModelListJson(names.served(), started, max_model_len));
  }
  const std::string asked = http::PercentDecode(path.substr(kModelsPrefix.size()));
  const auto match = asked.empty() ? std::nullopt : names.Find(asked);
  if (!match) return writer->Send(ErrorResponse(UnknownModel(asked, names)));
  send_json(ModelJson(match->name, started, max_model_len));
}

void ApiServer::Impl::Generate(http::Request request, WriterPtr writer,
                               RequestRecord::Clock::time_point arrival) {
  GenerationRoute route;
  route.engine = engine;
  route.front_end = front_end;
  route.names = &names;
  route.keys = &keys;
  route.limits = {engine->info().vocab_size,   options.max_logprobs,
                  options.default_temperature, options.default_top_p,
                  options.default_top_k,       engine->info().priority_scheduling};
  route.reasoning_field = options.reasoning_field;
  route.force_include_usage = options.force_include_usage;
  route.keep_alive_interval = options.keep_alive_interval;
  GenerationJob job;
  MaybeError error = BuildJob(route, request, &job);
  if (error) return writer->Send(ErrorResponse(*error));
  job.arrival = arrival;
  auto generation =
      std::make_shared<Generation>(engine, front_end, metrics, writer, std::move(job));
  {
    const std::lock_guard lock(mutex);
    if (aborting) return writer->Send(ErrorResponse(*CheckReady()));
    running.erase(std::remove_if(running.begin(), running.end(),
                                 [](const auto& weak) { return weak.expired(); }),
                  running.end());
    running.push_back(generation);
  }
  generation->Start();
}

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ApiServer::~ApiServer() { Shutdown(std::chrono::milliseconds(0)); }

Result<std::unique_ptr<ApiServer>> ApiServer::Start(ApiServerOptions options) {
  if (options.served_model_names.empty()) return InvalidArgument("no served model name");
  auto impl = std::make_unique<Impl>(std::move(options));
  http::HttpOptions http_options;
  http_options.host = impl->options.host;
  http_options.port = impl->options.port;
  http_options.io_threads = impl->options.io_threads;
  http_options.worker_threads = impl->options.worker_threads;
  http_options.max_connections = impl->options.max_connections;
  http_options.max_body_bytes = impl->options.max_body_bytes;
  http_options.max_header_bytes = impl->options.max_header_bytes;
  http_options.header_timeout = impl->options.header_timeout;
  http_options.body_timeout = impl->options.body_timeout;
  http_options.handler = [raw = impl.get()](http::Request request, WriterPtr writer) {
    raw->Handle(std::move(request), std::move(writer));
  };
  http_options.error_response = [](int status, std::string_view message) {
    return ErrorResponse({status, std::string(message), {}, {}});
  };
  http_options.access_log = LogAccess;
  FATHOM_ASSIGN_OR_RETURN(impl->server, http::HttpServer::Start(std::move(http_options)));
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

const std::string& ApiServer::address() const { return impl_->server->address(); }

int ApiServer::port() const { return impl_->server->port(); }

void ApiServer::Serve(Engine* engine, const TextFrontEnd* front_end) {
  impl_->engine = engine;
  impl_->front_end = front_end;
  impl_->metrics->Attach(engine);
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
