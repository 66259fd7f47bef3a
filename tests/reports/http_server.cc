#include "tests/reports/http_server.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

namespace fathom::reports {

HttpServer::HttpServer(const Json& answers, int64_t max_model_len, ApiServerOptions options) {
  spdlog::set_level(spdlog::level::warn);
  auto tokenizer = Tokenizer::Load(FATHOM_SOURCE_DIR "/models/fathom-nano");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  auto script = ParseReplayScript(answers.dump(), "answers", *tokenizer);
  EXPECT_TRUE(script.ok()) << script.status().ToString();
  ReplayEngineOptions replay;
  replay.info.vocab_size = tokenizer->vocab_size();
  replay.info.max_model_len = max_model_len;
  replay.info.eos_token_ids = {1};
  front_end_ = std::make_unique<TextFrontEnd>(std::move(*tokenizer), ChatOptions());
  replay.decode = [this](std::span<const TokenId> ids) { return front_end_->Decode(ids, false); };
  auto engine = ReplayEngine::Create(std::move(*script), std::move(replay));
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  engine_ = std::make_unique<RecordingEngine>(std::move(*engine));
  options.port = 0;
  options.version = "1.0";
  options.access_log = false;
  options.served_model_names = {"m"};
  auto server = ApiServer::Start(std::move(options));
  EXPECT_TRUE(server.ok()) << server.status().ToString();
  server_ = std::move(*server);
  server_->Serve(engine_.get(), front_end_.get());
}

}  // namespace fathom::reports
