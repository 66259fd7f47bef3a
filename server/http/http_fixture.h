// The server of the tests of this folder: an echo, and requests that a test answers itself.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/http/http_server.h"
#include "server/http/test_client.h"

namespace fathom::http {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// A value set by the server's threads and waited for by the test.
class Event {
 public:
  void Set() {
    const std::lock_guard lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  bool Wait(std::chrono::milliseconds timeout = std::chrono::seconds(20)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [this] { return set_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool set_ = false;
};

// Requests that the test answers itself, from its own thread.
class Inbox {
 public:
  void Put(Request request, WriterPtr writer) {
    const std::lock_guard lock(mutex_);
    items_.emplace_back(std::move(request), std::move(writer));
    changed_.notify_all();
  }
  std::pair<Request, WriterPtr> Take() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(20), [this] { return !items_.empty(); }))
      return {};
    auto item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<Request, WriterPtr>> items_;
};

// Paths under /hold wait in `inbox`, everything else is echoed.
class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    options_.port = 0;
    options_.handler = [this](Request request, WriterPtr writer) {
      if (request.path.rfind("/hold", 0) == 0) return inbox_.Put(std::move(request), writer);
      Response echo{
          200, "text/plain", {}, request.method + " " + request.path + " " + request.body};
      request = Request();  // its share of the budget is free before the client goes on
      writer->Send(std::move(echo));
    };
    options_.error_response = [](int status, std::string_view path, std::string_view message) {
      return Response{
          status, "text/plain", {{"X-Path", std::string(path)}}, "error: " + std::string(message)};
    };
    options_.access_log = [this](const AccessRecord& record) {
      const std::lock_guard lock(log_mutex_);
      log_.push_back(record);
    };
  }

  int Start() {
    auto server = HttpServer::Start(options_);
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(server).value();
    return server_->port();
  }

  HttpOptions options_;
  Inbox inbox_;
  std::mutex log_mutex_;
  std::vector<AccessRecord> log_;
  std::unique_ptr<HttpServer> server_;  // last: its threads use the members above
};

}  // namespace fathom::http
