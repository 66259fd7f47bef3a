// Runs a field report of kind "sequence" (tests/data/vectors/README.md): requests to one engine,
// one after the other or together, and what has to hold of their answers.
//
// Requests go to an EngineCore that is driven step by step; "status 200" is therefore that a
// request ends by its length, without an error. Whatever a report says that is not understood here
// fails the test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/invariance/harness.h"

namespace fathom::reports {

class SequenceRun {
 public:
  // `report` and the checkpoint at `model` must outlive the object.
  SequenceRun(const nlohmann::json& report, std::filesystem::path model);

  // All steps, once per length where there are lengths, and all expectations.
  void Run();

 private:
  using Json = nlohmann::json;
  using Saved = std::map<std::string, invariance::Answer>;

  [[nodiscard]] std::unique_ptr<invariance::Engine> NewEngine() const;
  void RunSteps(int64_t length);
  void RunRequests(const std::vector<const Json*>& steps, int64_t length, bool alone);
  void ExpectOfAnswers(int64_t length) const;
  void ExpectOfEngine() const;
  void ExpectEqual(const std::string& a, const std::string& b) const;
  void ExpectCached(const Json& at_least) const;

  const Json& input_;
  const Json& expect_;
  const bool wants_hits_;
  const std::filesystem::path model_;
  invariance::Setting setting_;
  std::unique_ptr<invariance::Engine> engine_;
  Saved saved_;                   // of the current length
  double longest_seconds_ = 0.0;  // of a step
};

}  // namespace fathom::reports
