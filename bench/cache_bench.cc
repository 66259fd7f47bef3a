#include "bench/cache_bench.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/workload.h"
#include "cache/block_manager.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {
namespace {

constexpr int64_t kChunk = 8192;
constexpr int64_t kMaxTokens = int64_t{1} << 29;  // of all sequences: 2 GiB of ids
constexpr int kStepsPerRun = 256;
constexpr int64_t kRunsOfShort = 100;
constexpr int64_t kShortRequest = 4000;

struct Client {
  SequenceId id = -1;
  std::vector<TokenId> tokens;
  PrefixKeys keys;
};

class CacheBench {
 public:
  CacheBench(const ModelConfig& config, const CacheBenchOptions& options)
      : o_(options),
        vocab_(config.vocab_size),
        planner_(CacheLayout(CacheGeometryOf(config, /*with_mtp=*/true), Numerics::kOfficial)) {}

  Status RunSteps();
  Status RunLongPrompt();
  Status RunChurn();
  Status RunShort(int num_points);

  [[nodiscard]] ReportTable table() const { return table_; }
  [[nodiscard]] int64_t pool_bytes() const { return manager_->pool().memory_bytes(); }

 private:
  using Step = std::function<bool()>;  // false: the memory was too small for it
  // Times `run`, which does `count` things of the name; `prepare` is not timed.
  Status Time(
      const std::string& name, int64_t count, const Step& run,
      const Step& prepare = [] { return true; });
  [[nodiscard]] Client MakeClient(int64_t stream, int64_t tokens) const;
  // Computes positions up to `end` in chunks, each with a resume point at its end.
  static bool Prefill(BlockManager& manager, Client& client, int64_t end);
  static Status TooSmall() { return Internal("the memory is too small for what is measured"); }

  const CacheBenchOptions o_;
  const int vocab_;
  const CachePlanner planner_;
  const PrefixKey seed_ = PrefixSeed("bench");
  std::unique_ptr<BlockManager> manager_;  // of RunSteps and RunLongPrompt
  ReportTable table_{"block manager", {"operation", "median_us", "low_us", "high_us", "per_s"}, {}};
};

Status CacheBench::Time(const std::string& name, int64_t count, const Step& run,
                        const Step& prepare) {
  std::vector<double> us;
  for (int i = 0; i < o_.repeats; ++i) {
    if (!prepare()) return TooSmall();
    const double begin = ThreadCpuMicroseconds();
    const bool done = run();
    us.push_back((ThreadCpuMicroseconds() - begin) / static_cast<double>(count));
    if (!done) return TooSmall();
  }
  const Spread spread = SpreadOf(us);
  table_.rows.push_back({name, spread.median, spread.low, spread.high, 1e6 / spread.median});
  return OkStatus();
}

Client CacheBench::MakeClient(int64_t stream, int64_t tokens) const {
  Client client;
  client.tokens = SyntheticTokens(stream, tokens, vocab_);
  client.keys = PrefixKeys(seed_, "", client.tokens);
  return client;
}

bool CacheBench::Prefill(BlockManager& manager, Client& client, int64_t end) {
  for (int64_t at = manager.length(client.id); at < end;) {
    at = std::min(end, at + kChunk);
    if (!manager.Extend(client.id, at, {.points = {&at, 1}, .rolling = at})) return false;
    manager.Commit(client.id, client.tokens);
  }
  return true;
}

Status CacheBench::RunSteps() {
  const int n = o_.num_sequences;
  // Two measurements, of as many steps each as there are repetitions.
  const int64_t most = o_.sequence_tokens + 2 * int64_t{kStepsPerRun} * o_.repeats;
  const int64_t slabs =
      (planner_.BytesFor(n, most) + planner_.BytesFor(2, o_.long_tokens)) / planner_.slab_bytes();
  BlockManagerOptions options;
  options.max_sequences = n + 1;
  options.max_positions = std::max(most, o_.long_tokens);
  options.max_step_positions = kChunk;
  FATHOM_ASSIGN_OR_RETURN(manager_, BlockManager::Create(planner_, slabs, options));
  BlockManager& manager = *manager_;

  // The long prompt runs beside them, in its own memory.
  std::vector<Client> clients(static_cast<size_t>(n));
  for (size_t i = 0; i < clients.size(); ++i) {
    Client& client = clients[i];
    client = MakeClient(static_cast<int64_t>(i), most);
    client.keys.Truncate(0);
    const std::optional<SequenceId> id = manager.Admit({}, &client.keys, most);
    if (!id) return TooSmall();
    client.id = *id;
    if (!Prefill(manager, client, o_.sequence_tokens)) return TooSmall();
  }
  const std::string of = " (" + std::to_string(n) + " sequences)";
  FATHOM_RETURN_IF_ERROR(
      Time("decode: Extend and Commit of one position" + of, int64_t{kStepsPerRun} * n, [&] {
        for (int step = 0; step < kStepsPerRun; ++step) {
          for (Client& c : clients) {
            if (!manager.Extend(c.id, manager.length(c.id) + 1)) return false;
          }
          for (Client& c : clients) manager.Commit(c.id, c.tokens);
        }
        return true;
      }));
  FATHOM_RETURN_IF_ERROR(Time(
      "the same with a rolling resume point every 64 positions", int64_t{kStepsPerRun} * n, [&] {
        for (int step = 0; step < kStepsPerRun; ++step) {
          for (Client& c : clients) {
            const int64_t end = manager.length(c.id) + 1;
            const bool roll = end % 64 == 0;
            const StepKeeps keeps = {.points = {&end, roll ? 1U : 0U}, .rolling = roll ? end : -1};
            if (!manager.Extend(c.id, end, keeps)) return false;
          }
          for (Client& c : clients) manager.Commit(c.id, c.tokens);
        }
        return true;
      }));
  FATHOM_RETURN_IF_ERROR(Time("Fits" + of, 1000, [&] {
    bool fits = true;
    for (int i = 0; i < 1000; ++i) fits = manager.Fits(1000, {}) && fits;
    return fits;
  }));
  FATHOM_RETURN_IF_ERROR(RunLongPrompt());
  for (Client& client : clients) manager.Release(client.id);
  return OkStatus();
}

Status CacheBench::RunLongPrompt() {
  BlockManager& manager = *manager_;
  const int64_t n = o_.long_tokens;
  const std::string tokens = std::to_string(n) + " tokens";
  Client big = MakeClient(-1, n);
  FATHOM_RETURN_IF_ERROR(Time("keys of " + tokens + ", per block of 256", n / kBlockPositions, [&] {
    big.keys = PrefixKeys(seed_, "", big.tokens);
    return true;
  }));
  const auto start = [&] {
    const PrefixMatch match = manager.Match(big.tokens, big.keys);
    const std::optional<SequenceId> id = manager.Admit(match, &big.keys, n);
    big.id = id.value_or(-1);
    return big.id >= 0 ? match.position : -1;
  };
  const auto end = [&] {
    manager.Release(big.id);
    manager.ClearCopies();
    big.id = -1;
  };
  FATHOM_RETURN_IF_ERROR(Time(
      "prefill of " + tokens + ", per chunk of 8192", (n + kChunk - 1) / kChunk,
      [&] { return Prefill(manager, big, n - 1); },
      [&] {
        if (big.id >= 0) end();
        big.tokens[0] += 1;  // once it is cached it would hit
        big.keys = PrefixKeys(seed_, "", big.tokens);
        return start() == 0;
      }));
  end();
  big.keys = PrefixKeys(seed_, "", big.tokens);
  FATHOM_RETURN_IF_ERROR(Time("Match of " + tokens + ", cached", 100, [&] {
    bool found = true;
    for (int i = 0; i < 100; ++i) {
      found = manager.Match(big.tokens, big.keys).position == n - 1 && found;
    }
    return found;
  }));
  return Time("Match, Admit and Release of " + tokens + ", cached", 100, [&] {
    for (int i = 0; i < 100; ++i) {
      if (start() != n - 1) return false;
      end();
    }
    return true;
  });
}

// Requests come and go in memory that is full of cached prefixes.
Status CacheBench::RunChurn() {
  BlockManagerOptions options;
  options.max_sequences = 64;
  options.max_positions = 65'536;
  options.max_step_positions = kChunk;
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<BlockManager> manager,
      BlockManager::Create(planner_, planner_.BytesFor(64, 8192) / planner_.slab_bytes(), options));
  std::vector<Client> clients;
  for (int i = 0; i < o_.num_short_requests; ++i) clients.push_back(MakeClient(i, kShortRequest));
  return Time("a request of 4000 tokens in full memory, all calls", o_.num_short_requests, [&] {
    for (Client& client : clients) {
      const PrefixMatch match = manager->Match(client.tokens, client.keys);
      if (!manager->Fits(kShortRequest, match)) return false;
      const std::optional<SequenceId> id = manager->Admit(match, &client.keys, kShortRequest);
      if (!id) return false;
      client.id = *id;
      if (!Prefill(*manager, client, kShortRequest)) return false;
      manager->Release(client.id);
      manager->ClearCopies();
    }
    return true;
  });
}

// Prompts shorter than a block: all their resume points hang on the root.
Status CacheBench::RunShort(int num_points) {
  BlockManagerOptions options;
  options.max_sequences = 64;
  options.max_positions = 65'536;
  options.max_step_positions = kChunk;
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<BlockManager> manager,
                          BlockManager::Create(planner_, 40'000, options));
  std::vector<Client> clients;
  for (int i = 0; i < num_points; ++i) {
    Client& client = clients.emplace_back(MakeClient(i, 100));
    const std::optional<SequenceId> id = manager->Admit({}, &client.keys, 100);
    if (!id) return TooSmall();
    client.id = *id;
    if (!Prefill(*manager, client, 100)) return TooSmall();
    manager->Release(client.id);
  }
  if (manager->prefixes().num_points() != num_points) return TooSmall();
  std::vector<std::vector<TokenId>> prompts;
  for (size_t i = 0; i < static_cast<size_t>(kRunsOfShort); ++i) {
    prompts.push_back(clients[i % clients.size()].tokens);
    prompts.back().push_back(1);
  }
  return Time("Match of 101 tokens among " + std::to_string(num_points) + " of 100", kRunsOfShort,
              [&] {
                bool found = true;
                for (size_t i = 0; i < prompts.size(); ++i) {
                  const PrefixKeys& keys = clients[i % clients.size()].keys;
                  found = manager->Match(prompts[i], keys).position == 100 && found;
                }
                return found;
              });
}

}  // namespace

Result<Report> BenchCache(const ModelConfig& config, const CacheBenchOptions& o) {
  const int64_t most = o.sequence_tokens + 2 * int64_t{kStepsPerRun} * o.repeats;
  const int64_t longest = std::max(most, o.long_tokens);
  if (longest > config.max_position_embeddings) {
    return InvalidArgument("a sequence of " + std::to_string(longest) + " tokens: the model has " +
                           std::to_string(config.max_position_embeddings) + " positions");
  }
  if (o.long_tokens < kBlockPositions) {
    return InvalidArgument("a long prompt of " + std::to_string(o.long_tokens) +
                           " tokens, need at least a block of " + std::to_string(kBlockPositions));
  }
  if (most > (kMaxTokens - o.long_tokens) / o.num_sequences) {
    return InvalidArgument(std::to_string(o.num_sequences) + " sequences of " +
                           std::to_string(most) + " tokens: more than the " +
                           std::to_string(kMaxTokens) + " that are kept in memory");
  }
  CacheBench bench(config, o);
  FATHOM_RETURN_IF_ERROR(bench.RunSteps());
  FATHOM_RETURN_IF_ERROR(bench.RunChurn());
  for (int points = 100; points <= o.max_resume_points; points *= 10) {
    FATHOM_RETURN_IF_ERROR(bench.RunShort(points));
  }
  Report report;
  report.bench = "cache";
  report.conditions = MachineConditions();
  report.conditions.insert(report.conditions.end(), {{"layers", int64_t{config.num_layers}},
                                                     {"threads", int64_t{1}},
                                                     {"sequences", int64_t{o.num_sequences}},
                                                     {"tokens_per_sequence", o.sequence_tokens},
                                                     {"pool_bytes", bench.pool_bytes()},
                                                     {"time", std::string("CPU time")},
                                                     {"repetitions", int64_t{o.repeats}}});
  report.tables.push_back(bench.table());
  return report;
}

}  // namespace fathom::bench
