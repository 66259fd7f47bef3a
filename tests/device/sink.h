// Sink: all that a request was given, to be compared bit by bit.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace fathom {

class Sink final : public RequestSink {
 public:
  void OnPromptLogprobs(std::span<const TokenEvent> events) override {
    for (const TokenEvent& event : events) Add(event);
  }
  void OnToken(const TokenEvent& event) override {
    tokens.push_back(event.token);
    Add(event);
  }
  void OnFinish(const FinishEvent& event) override {
    finish = event;
    finished = true;
  }
  std::vector<TokenId> tokens;
  std::vector<int64_t> seen;  // ids, and bits of log-probabilities
  FinishEvent finish;
  bool finished = false;

 private:
  void Add(const TokenEvent& event) {
    seen.push_back(event.token);
    seen.push_back(std::bit_cast<int32_t>(event.logprob));
    for (const TokenLogprob& top : event.top) {
      seen.push_back(top.token);
      seen.push_back(std::bit_cast<int32_t>(top.logprob));
    }
  }
};

}  // namespace fathom
