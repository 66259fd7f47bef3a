// `fathom serve` as tests use it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/http/test_client.h"
#include "tests/cli/program.h"

namespace fathom::cli_test {

// A running server on a free port.
class Server {
 public:
  explicit Server(std::vector<std::string> options)
      : program_([&options] {
          options.insert(options.begin(), {"serve", "--port", "0", "--log-level", "info"});
          return options;
        }()) {
    const std::string before = "http://127.0.0.1:";
    if (!program_.WaitForOutput(before) || !program_.WaitForOutput("/v1")) return;
    port_ = std::atoi(program_.output().c_str() + program_.output().find(before) + before.size());
  }
  [[nodiscard]] int port() const { return port_; }  // 0: it did not start
  Program& program() { return program_; }

  nlohmann::json Get(const std::string& path, const std::string& headers = {}) {
    const http::TestClient::Reply reply = http::TestClient(port_).Ask("GET", path, {}, headers);
    nlohmann::json json = nlohmann::json::parse(reply.body, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << reply.body;
    return json;
  }
  http::TestClient::Reply Post(const std::string& path, const nlohmann::json& body) {
    return http::TestClient(port_).Ask("POST", path, body.dump());
  }
  std::vector<std::string> ModelNames() {
    std::vector<std::string> names;
    const nlohmann::json models = Get("/v1/models");
    for (const nlohmann::json& model : models.at("data")) names.push_back(model.at("id"));
    return names;
  }

 private:
  Program program_;
  int port_ = 0;
};

}  // namespace fathom::cli_test
