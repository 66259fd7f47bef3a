// A weights file that is truncated under a server: requests fail with a message, the server lives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "engine/local_engine.h"
#include "server/api_server.h"
#include "server/http/test_client.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(LostWeights, RequestsFailAndTheServerStaysUp) {
  const fs::path directory = fs::path(::testing::TempDir()) / "fathom_lost_weights_server";
  fs::remove_all(directory);
  fs::create_directories(directory);
  for (const auto& entry : fs::directory_iterator(ProjectPath("models/fathom-nano"))) {
    fs::copy_file(entry.path(), directory / entry.path().filename());
  }
  auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  auto tokenizer = Tokenizer::Load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const TextFrontEnd front_end(std::move(tokenizer).value(), {});
  LocalEngineOptions engine_options;
  engine_options.max_model_len = 2048;
  engine_options.num_threads = 2;
  auto engine = LocalEngine::Create(std::move(checkpoint).value(), {1}, engine_options);
  ASSERT_TRUE(engine.ok()) << engine.status().ToString();
  ApiServerOptions options;
  options.port = 0;
  options.version = "test";
  options.served_model_names = {"nano"};
  auto server = ApiServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  (*server)->Serve(engine->get(), &front_end);
  const int port = (*server)->port();

  http::TestClient stream(port);
  stream.SendRequest("POST", "/v1/completions",
                     R"({"prompt": "Once", "max_tokens": 1500, "ignore_eos": true, "stream": true,
                         "temperature": 0})");
  ASSERT_EQ(stream.ReadHead().status, 200);
  std::string chunk;
  ASSERT_TRUE(stream.ReadChunk(&chunk));  // the request runs
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), 4096);
  }
  std::string rest;
  while (stream.ReadChunk(&chunk)) rest += chunk;
  EXPECT_THAT(rest, HasSubstr("data loss"));
  EXPECT_THAT(rest, ::testing::Not(HasSubstr("finish_reason\":\"length")));

  const auto later = http::TestClient(port).Ask("POST", "/v1/completions",
                                                R"({"prompt": "Once", "max_tokens": 2})");
  EXPECT_EQ(later.status, 500) << later.body;
  EXPECT_THAT(later.body, HasSubstr("data loss"));
  EXPECT_THAT(later.body, ::testing::Not(HasSubstr(directory.string())));
  for (const char* path : {"/health", "/v1/models"}) {
    EXPECT_EQ(http::TestClient(port).Ask("GET", path).status, 200) << path;
  }
  server->reset();
  engine->reset();
  fs::remove_all(directory);
}

}  // namespace
}  // namespace fathom
