// The whole HTTP stack over the replay model, for field reports of kinds http and raw_http.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "replay/replay_engine.h"
#include "server/api_server.h"
#include "server/http/test_client.h"

namespace fathom::reports {

// What requests reach the engine, whatever answers them.
class RecordingEngine final : public Engine {
 public:
  explicit RecordingEngine(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  Result<RequestId> Submit(GenerateRequest request, std::shared_ptr<RequestSink> sink) override {
    {
      const std::lock_guard lock(mutex_);
      requests_.push_back(request);
    }
    return engine_->Submit(std::move(request), std::move(sink));
  }
  [[nodiscard]] std::vector<GenerateRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  [[nodiscard]] const EngineInfo& info() const override { return engine_->info(); }
  void Abort(RequestId id) override { engine_->Abort(id); }
  void EndAt(RequestId id, int64_t num_tokens) override { engine_->EndAt(id, num_tokens); }
  void ResetPrefixCache() override { engine_->ResetPrefixCache(); }
  [[nodiscard]] int num_running() const override { return engine_->num_running(); }
  [[nodiscard]] int num_waiting() const override { return engine_->num_waiting(); }
  [[nodiscard]] EngineStats stats() const override { return engine_->stats(); }

 private:
  const std::unique_ptr<Engine> engine_;
  mutable std::mutex mutex_;  // guards requests_
  std::vector<GenerateRequest> requests_;
};

class HttpServer {
 public:
  using Json = nlohmann::json;
  using Reply = http::TestClient::Reply;

  // `answers`: as in a replay file. The model is called m.
  explicit HttpServer(const Json& answers, int64_t max_model_len = 4096,
                      ApiServerOptions options = {});

  Reply Post(std::string_view path, std::string_view body) {
    return http::TestClient(server_->port()).Ask("POST", path, body);
  }
  Reply Get(std::string_view path) { return http::TestClient(server_->port()).Ask("GET", path); }
  [[nodiscard]] int port() const { return server_->port(); }
  [[nodiscard]] std::vector<GenerateRequest> requests() const { return engine_->requests(); }
  [[nodiscard]] const TextFrontEnd& front_end() const { return *front_end_; }

 private:
  std::unique_ptr<TextFrontEnd> front_end_;
  std::unique_ptr<RecordingEngine> engine_;
  std::unique_ptr<ApiServer> server_;  // last: uses what is above
};

}  // namespace fathom::reports
