// Generation: one API request from its prompts to the last byte of its answer.
//
// The engine's threads only queue events; everything else happens on the connection's strand: text
// (ChoiceRun), the wire format, keep-alive messages, and aborting in the engine when an answer is
// complete early or the client left. All choices run at once, a bounded number of them in the
// engine; the further samples of a prompt wait for the first token of its first one, so that they
// find the prompt in the prefix cache.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/answer_format.h"
#include "server/api_error.h"
#include "server/choice_run.h"
#include "server/http/message.h"
#include "server/metrics.h"
#include "server/text_front_end.h"

namespace fathom {

struct GenerationJob {
  struct Prompt {
    std::vector<TokenId> ids;
    std::string echo;        // text that the answer begins with
    int64_t max_tokens = 0;  // 0: the echo alone
    PromptEcho wanted;       // what the answer tells of the prompt
  };
  std::vector<Prompt> prompts;
  int num_samples = 1;  // of each prompt; choices are ordered by prompt, then by sample
  // For every prompt, which brings its own `prompt` and `max_tokens`. A seed counts up with the
  // samples.
  GenerateRequest request;
  // One for each choice; null where every token may come.
  std::function<std::shared_ptr<TokenConstraint>()> new_constraint;
  ChoiceOptions choice;
  std::unique_ptr<AnswerFormat> format;
  http::HeaderList headers;  // of the answer
  std::string traceparent;   // for the log; empty: none
  bool stream = false;
  int stream_interval = 1;  // tokens of a choice between two writes, the first one apart
  bool continuous_usage = false;
  std::chrono::milliseconds keep_alive_interval{10'000};
  RequestRecord::Clock::time_point arrival;  // of the request at the server
  std::shared_ptr<void> in_flight;           // released when the answer has ended
};

// What a generation uses of the server. All of it outlives the HTTP server that the writer is of;
// after that it is not used any more, but for the metrics, which the engine may hold with a sink.
struct GenerationContext {
  Engine* engine = nullptr;
  const TextFrontEnd* front_end = nullptr;
  std::shared_ptr<ServerMetrics> metrics;
  bool log_requests = false;
  int64_t max_log_len = 0;  // bytes of a prompt in the log
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(GenerationContext context, std::shared_ptr<http::ResponseWriter> writer,
             GenerationJob job);

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
  // What the engine has delivered since the last time.
  struct Batch {
    std::vector<TokenEvent> prompt_tokens;
    std::vector<TimedToken> tokens;
    std::optional<FinishEvent> finish;
  };
  struct Run {
    Run(int i, ChoiceRun c) : index(i), choice(std::move(c)) {}
    int index = 0;  // of the choice
    ChoiceRun choice;
    std::shared_ptr<Sink> sink;  // null before the engine has the request and after its end
    RequestId request_id = 0;
    RequestRecord record;
    int tokens_to_send = 0;
    bool started = false;
    bool begun = false;  // its first chunk was sent
    bool ended = false;
  };

  // All on the strand.
  void Begin();
  void StartRuns();
  bool StartRun(Run* run);
  void OnBatch(int index, const Sink* sink, Batch batch);
  void OnToken(Run* run, const TimedToken& token);
  void OnFinish(Run* run, const FinishEvent& event);
  void CutOff(Run* run);
  void OnClientLeft();
  void OnSilence();
  void Emit(Run* run);
  void EmitChunks(Run* run);
  void EndRun(Run* run);
  void EndAnswer();
  void Fail(const RequestError& error);
  void Flush();
  void NoteCachedTokens(Run* run, int64_t cached_tokens);
  void CountToken(Run* run, RequestRecord::Clock::time_point time);
  void Settle(Run* run, FinishReason reason);
  void NoteEnd(std::string_view outcome);
  void LogBegin() const;
  [[nodiscard]] const GenerationJob::Prompt& PromptOf(const Run& run) const;
  [[nodiscard]] bool IsFirstSample(const Run& run) const;
  [[nodiscard]] ChunkExtras ExtrasOf(const Run& run) const;

  const GenerationContext context_;
  const std::shared_ptr<http::ResponseWriter> writer_;
  GenerationJob job_;

  std::vector<Run> runs_;  // by choice
  size_t num_ended_ = 0;
  int num_in_engine_ = 0;
  Usage usage_;
  std::string out_;  // of a stream, not yet written
  RequestRecord::Clock::time_point first_token_;
  bool stream_begun_ = false;  // its head was sent
  bool answer_begun_ = false;  // format's Begin
  bool ended_ = false;         // nothing more is sent
};

}  // namespace fathom
