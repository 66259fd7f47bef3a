// Generation: one API request from its prompts to the last byte of its answer.
//
// The engine's thread only queues events; everything else happens on the connection's strand: text
// (stop strings, reasoning), JSON, keep-alive comments, and aborting in the engine when a stop
// string matched or the client left. Several prompts run one after the other.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/answer_format.h"
#include "server/api_error.h"
#include "server/http/message.h"
#include "server/metrics.h"
#include "server/text_front_end.h"

namespace fathom {

struct GenerationJob {
  struct Prompt {
    std::vector<TokenId> ids;
    std::string echo;        // text that the answer begins with
    int64_t max_tokens = 0;  // 0: the echo alone
  };
  std::vector<Prompt> prompts;
  GenerateRequest request;  // for every prompt, which brings its own `prompt` and `max_tokens`
  OutputOptions output;
  std::unique_ptr<AnswerFormat> format;
  http::HeaderList headers;  // of the answer
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool include_reasoning = true;
  std::chrono::milliseconds keep_alive_interval{10'000};
  RequestRecord::Clock::time_point arrival;  // of the request at the server
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Engine and front end must outlive the HTTP server that the writer is of; after that they are
  // not used any more, although the engine may still hold the generation's sink (which keeps the
  // metrics).
  Generation(Engine* engine, const TextFrontEnd* front_end, std::shared_ptr<ServerMetrics> metrics,
             std::shared_ptr<http::ResponseWriter> writer, GenerationJob job);

  // Any thread. The connection and the engine keep the generation alive until it ends.
  void Start();
  // Any thread: the server is going down. The client gets what there is and an error.
  void AbortForShutdown();

 private:
  class Sink;
  struct TimedToken {
    TokenEvent event;
    RequestRecord::Clock::time_point time;  // when the engine delivered it
  };

  // All on the strand.
  void RunPrompt();
  void OnEvents(const Sink* sink, const std::vector<TimedToken>& tokens, const FinishEvent* finish);
  void OnToken(const TimedToken& token);
  void OnFinish(const FinishEvent& event);
  void OnClientLeft();
  void OnSilence();
  void Emit();  // sends or keeps what is in deltas_
  void EndChoice(ChoiceEnd end);
  void EndAnswer();
  void Fail(const RequestError& error);
  void BeginStream();
  void SendChunk(const std::string& json);
  void NoteCachedTokens(int64_t cached_tokens);
  void CountToken(RequestRecord::Clock::time_point time);
  void Settle(FinishReason reason);
  [[nodiscard]] bool IsEndToken(TokenId token) const;
  [[nodiscard]] LogprobEntry EntryFor(const TokenEvent& event) const;
  [[nodiscard]] const Usage* RunningUsage() const;
  [[nodiscard]] std::vector<LogprobEntry>* Logprobs();

  Engine* const engine_;
  const TextFrontEnd* const front_end_;
  // Last owner: the server, or the engine with a sink of a request that outlived the server.
  const std::shared_ptr<ServerMetrics> metrics_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  GenerationJob job_;

  size_t prompt_index_ = 0;
  std::shared_ptr<Sink> sink_;  // of the running request; null between requests
  RequestId request_id_ = 0;
  std::unique_ptr<OutputStream> output_;
  std::vector<OutputDelta> deltas_;
  std::vector<LogprobEntry> pending_logprobs_;  // of tokens whose text is not sent yet
  std::vector<Choice> choices_;                 // the last one is being made
  Usage usage_;
  int64_t tokens_before_ = 0;  // usage_.completion_tokens when the running prompt began
  RequestRecord record_;       // of the running request; its cached tokens are in usage_ already
  bool stream_begun_ = false;
  bool role_sent_ = false;
  bool ended_ = false;  // nothing more is sent
};

}  // namespace fathom
