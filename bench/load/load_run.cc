#include "bench/load/load_run.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bench/load/address.h"
#include "bench/load/exchange.h"

namespace fathom::load {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;

// How often stalled streams and an interrupt are looked for.
constexpr std::chrono::milliseconds kTick{50};
// Starting a request costs a while: whoever runs gets its turn between them.
constexpr int kMostStartsAtOnce = 32;
// The stream of random numbers that conversations, which count from 0, do not use.
constexpr uint64_t kArrivalStream = uint64_t{1} << 63;

class LoadRun {
 public:
  LoadRun(const LoadOptions& options, const Workload& workload, Exchange::Target target)
      : options_(options),
        workload_(workload),
        target_(std::move(target)),
        random_(options.seed, kArrivalStream),
        arrival_timer_(context_),
        tick_timer_(context_) {}

  LoadResult Run() {
    begin_ = last_end_ = next_arrival_ = Clock::now();
    if (options_.request_rate) {
      Arrive();
    } else {
      num_arrived_ = options_.num_conversations.value_or(INT64_MAX);
    }
    StartWaiting();
    Tick();
    context_.run();
    result_.duration = last_end_ - begin_;
    return std::move(result_);
  }

 private:
  struct Running {
    explicit Running(Conversation c) : conversation(std::move(c)) {}
    Conversation conversation;
    std::shared_ptr<Exchange> exchange;  // the socket's callbacks hold it as well
  };

  // No new conversations.
  [[nodiscard]] bool is_closing() const {
    return stopped_ || (options_.duration && Clock::now() - begin_ >= *options_.duration);
  }
  [[nodiscard]] bool has_all_begun() const {
    return is_closing() ||
           (options_.num_conversations && num_started_ >= *options_.num_conversations);
  }

  // Arrivals have times of their own, however late the timer comes.
  void Arrive() {
    const auto now = Clock::now();
    while (next_arrival_ <= now) {
      ++num_arrived_;
      const std::chrono::duration<double> gap(random_.Exponential() / *options_.request_rate);
      next_arrival_ += std::chrono::duration_cast<Clock::duration>(gap);
    }
    arrival_timer_.expires_at(next_arrival_);
    arrival_timer_.async_wait([this](ErrorCode error) {
      if (error || has_all_begun()) return;
      Arrive();
      StartWaiting();
    });
  }

  void StartWaiting() {
    const auto has_room = [this] {
      return num_arrived_ > num_started_ && !has_all_begun() &&
             (!options_.max_concurrency ||
              running_.size() < static_cast<size_t>(*options_.max_concurrency));
    };
    for (int i = 0; i < kMostStartsAtOnce && has_room(); ++i) {
      const int64_t index = num_started_++;
      const auto [place, is_new] =
          running_.emplace(index, Running(workload_.NewConversation(index)));
      SendNext(index, &place->second);
      result_.most_at_once = std::max(result_.most_at_once, static_cast<int>(running_.size()));
    }
    if (has_room() && !std::exchange(start_posted_, true)) {
      asio::post(context_, [this] {
        start_posted_ = false;
        StartWaiting();
      });
    }
  }

  void SendNext(int64_t index, Running* running) {
    const std::string body = running->conversation.NextBody();
    // The text is only needed to say it again.
    const bool keep_text = !running->conversation.is_over();
    running->exchange =
        std::make_shared<Exchange>(context_, target_, keep_text, result_.chunk_times,
                                   [this, index](Outcome outcome, std::unique_ptr<Socket> socket) {
                                     OnDone(index, std::move(outcome), std::move(socket));
                                   });
    std::unique_ptr<Socket> kept;
    if (!idle_.empty()) {
      kept = std::move(idle_.back());
      idle_.pop_back();
    }
    running->exchange->Start(body, std::move(kept));
  }

  void OnDone(int64_t index, Outcome outcome, std::unique_ptr<Socket> socket) {
    last_end_ = Clock::now();
    result_.Add(outcome);
    if (socket) idle_.push_back(std::move(socket));
    const auto place = running_.find(index);
    Running& running = place->second;
    // A conversation does not go on behind an answer that failed.
    if (outcome.kind == Outcome::Kind::kOk && !running.conversation.is_over() && !is_closing()) {
      running.conversation.AddAnswer(std::move(outcome.text));
      return SendNext(index, &running);
    }
    running_.erase(place);
    StartWaiting();
  }

  void Tick() {
    if (!stopped_ && options_.interrupt != nullptr && *options_.interrupt) {
      stopped_ = result_.was_stopped = true;
      for (auto& [index, running] : running_) {
        running.exchange->Stop(Outcome::Kind::kCancelled, "interrupted");
      }
    }
    const auto oldest = Clock::now() - options_.timeout;
    for (auto& [index, running] : running_) {
      if (running.exchange->last_activity() >= oldest) continue;
      running.exchange->Stop(
          Outcome::Kind::kTimeout,
          "nothing came for " + std::to_string(options_.timeout.count()) + " ms");
    }
    if (running_.empty() && has_all_begun()) {
      arrival_timer_.cancel();
      idle_.clear();
      return;
    }
    tick_timer_.expires_after(kTick);
    tick_timer_.async_wait([this](ErrorCode error) {
      if (!error) Tick();
    });
  }

  const LoadOptions& options_;
  const Workload& workload_;
  const Exchange::Target target_;
  Random random_;
  asio::io_context context_{1};  // one thread: no locks inside
  asio::steady_timer arrival_timer_, tick_timer_;
  LoadResult result_;
  std::unordered_map<int64_t, Running> running_;  // by conversation
  std::vector<std::unique_ptr<Socket>> idle_;     // open connections without request
  int64_t num_arrived_ = 0;
  int64_t num_started_ = 0;
  bool start_posted_ = false;
  bool stopped_ = false;
  Clock::time_point begin_, last_end_, next_arrival_;
};

}  // namespace

Result<LoadResult> RunLoad(const LoadOptions& options, const Workload& workload) {
  if (!options.num_conversations && !options.duration && options.interrupt == nullptr) {
    return InvalidArgument("a load without number and duration would never end");
  }
  Exchange::Target target;
  target.endpoint = workload.options().endpoint;
  FATHOM_ASSIGN_OR_RETURN(target.head, RequestHead("POST", options.url,
                                                   EndpointPath(target.endpoint), options.api_key));
  FATHOM_ASSIGN_OR_RETURN(target.address, Resolve(options.url));
  if (target.endpoint == Endpoint::kMessages) {
    if (!options.api_key.empty()) target.head += "x-api-key: " + options.api_key + "\r\n";
    target.head += "anthropic-version: 2023-06-01\r\n";
  }
  target.head += "Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: ";
  return LoadRun(options, workload, std::move(target)).Run();
}

}  // namespace fathom::load
