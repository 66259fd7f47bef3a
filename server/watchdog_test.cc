// An engine that has work and does not get on. Report R085: requests that are accepted and never
// scheduled, with nothing to see from outside.
#include "server/watchdog.h"

#include <spdlog/sinks/ostream_sink.h>

#include <sstream>

#include "server/api_server_fixture.h"

namespace fathom {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

EngineStats Stats(int num_running, int num_waiting, int64_t num_steps) {
  EngineStats stats;
  stats.num_running = num_running;
  stats.num_waiting = num_waiting;
  stats.num_steps = num_steps;
  return stats;
}

class ProgressWatchTest : public ::testing::Test {
 protected:
  // After so many seconds from the start.
  bool StalledAt(int seconds, const EngineStats& stats) {
    watch_.Observe(stats, start_ + std::chrono::seconds(seconds));
    return watch_.stalled();
  }
  const ProgressWatch::Clock::time_point start_ = ProgressWatch::Clock::now();
  ProgressWatch watch_{60s};
};

TEST_F(ProgressWatchTest, IdleIsNoStall) {
  EXPECT_FALSE(StalledAt(0, Stats(0, 0, 5)));
  EXPECT_FALSE(StalledAt(1000, Stats(0, 0, 5)));
  // Time counts from when the work was seen, not from the last step.
  EXPECT_FALSE(StalledAt(1010, Stats(0, 1, 5)));
  EXPECT_FALSE(StalledAt(1069, Stats(0, 1, 5)));
  EXPECT_TRUE(StalledAt(1070, Stats(0, 1, 5)));
}

TEST_F(ProgressWatchTest, StepsAreProgress) {
  for (int seconds = 0; seconds < 1000; seconds += 50) {
    EXPECT_FALSE(StalledAt(seconds, Stats(1, 3, seconds)));
  }
}

TEST_F(ProgressWatchTest, NewRequestsAreNone) {
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(StalledAt(10 * i, Stats(0, 1 + i, 5)));
  EXPECT_TRUE(StalledAt(60, Stats(0, 9, 5)));
  EXPECT_THAT(watch_.Description(),
              AllOf(HasSubstr("no progress for 60 s"), HasSubstr("0 request(s) run and 9 wait")));
}

TEST_F(ProgressWatchTest, AStepOrIdlenessEndsAStall) {
  StalledAt(0, Stats(2, 0, 5));
  EXPECT_TRUE(StalledAt(100, Stats(2, 0, 5)));
  EXPECT_FALSE(StalledAt(101, Stats(2, 0, 6)));
  EXPECT_FALSE(StalledAt(160, Stats(2, 0, 6)));
  EXPECT_TRUE(StalledAt(161, Stats(2, 0, 6)));
  EXPECT_FALSE(StalledAt(162, Stats(0, 0, 6)));
}

// The log while the object lives.
class CapturedLog {
 public:
  CapturedLog() {
    logger_ = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    logger_->set_level(spdlog::level::info);
    spdlog::set_default_logger(logger_);
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  // When nobody logs any more.
  [[nodiscard]] std::string text() const { return text_.str(); }

 private:
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::shared_ptr<spdlog::logger> logger_;
  std::ostringstream text_;
};

class WatchdogTest : public ApiServerTest {
 protected:
  // Asks until the path has the status; the last reply.
  Reply GetUntil(const char* path, int status) {
    const auto deadline = std::chrono::steady_clock::now() + 30s;
    Reply reply = Get(path);
    while (reply.status != status && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
      reply = Get(path);
    }
    EXPECT_EQ(reply.status, status) << path;
    return reply;
  }
};

TEST_F(WatchdogTest, HealthAndLogTellThatNothingGetsOnAndRecover) {
  const CapturedLog log;
  options_.watchdog_timeout = 300ms;
  engine_.Script(IdsAndEos("x"));
  EXPECT_EQ(Chat().status, 200);
  EXPECT_EQ(Get("/health").status, 200);

  // From here on requests are accepted and nothing is computed.
  engine_.SetGate(false);
  http::TestClient running(port()), waiting(port());
  running.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  waiting.SendRequest("POST", "/v1/chat/completions", ChatBody(""));
  ASSERT_TRUE(engine_.WaitFor(1, 1, 20s));
  const Reply sick = GetUntil("/health", 503);
  EXPECT_THAT(sick.body, AllOf(HasSubstr("no progress for"), HasSubstr("1 request(s) run and 1")));
  EXPECT_EQ(sick.headers.count("Retry-After"), 1u);
  EXPECT_EQ(Get("/readiness").status, 503);
  EXPECT_EQ(Get("/ping").status, 503);
  EXPECT_EQ(Get("/liveness").status, 200) << "the process itself lives";
  EXPECT_EQ(Get("/v1/models").status, 200);

  engine_.SetGate(true);
  EXPECT_EQ(running.ReadReply().status, 200);
  EXPECT_EQ(waiting.ReadReply().status, 200);
  GetUntil("/health", 200);
  EXPECT_EQ(Get("/readiness").body, "");
  server_.reset();
  EXPECT_THAT(log.text(), AllOf(HasSubstr("no progress for"), HasSubstr("goes on after")));
}

// Has a request and does nothing about it. Counts how often it was asked.
class StalledEngine final : public Engine {
 public:
  [[nodiscard]] const EngineInfo& info() const override { return info_; }
  Result<RequestId> Submit(GenerateRequest /*request*/,
                           std::shared_ptr<RequestSink> /*sink*/) override {
    return Unavailable("stalled");
  }
  void Abort(RequestId /*id*/) override {}
  void EndAt(RequestId /*id*/, int64_t /*num_tokens*/) override {}
  void ResetPrefixCache() override {}
  [[nodiscard]] int num_running() const override { return 1; }
  [[nodiscard]] int num_waiting() const override { return 0; }
  [[nodiscard]] EngineStats stats() const override {
    const std::lock_guard lock(mutex_);
    ++num_asked_;
    asked_.notify_all();
    return Stats(1, 0, 0);
  }
  bool WaitUntilAsked(int times) const {
    std::unique_lock lock(mutex_);
    return asked_.wait_for(lock, 30s, [&] { return num_asked_ >= times; });
  }

 private:
  const EngineInfo info_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable asked_;
  mutable int num_asked_ = 0;
};

TEST(Watchdog, LogsOnceAndUnasked) {
  const CapturedLog log;
  const StalledEngine engine;
  {
    const Watchdog watchdog(&engine, 50ms);
    // Every 5 ms at most, of which the first starts the clock.
    ASSERT_TRUE(engine.WaitUntilAsked(30));
  }
  const std::string text = log.text();
  const size_t first = text.find("no progress for");
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("no progress for", first + 1), std::string::npos) << text;
}

TEST_F(WatchdogTest, LivenessAnswersInEveryState) {
  Bind();
  EXPECT_EQ(Get("/liveness").status, 200);
  const Reply loading = Get("/readiness");
  EXPECT_EQ(loading.status, 503);
  EXPECT_THAT(loading.body, HasSubstr("loading"));
  server_->Serve(&engine_, &front_end_);
  EXPECT_EQ(Get("/readiness").status, 200);
  EXPECT_EQ(Get("/liveness").status, 200);
  ExpectError(Post("/liveness", "{}"), 405, "Method Not Allowed", nullptr);
}

}  // namespace
}  // namespace fathom
