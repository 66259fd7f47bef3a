// Measures the block manager: cache_bench [REPEATS]
//
// V4-Flash with its MTP layer; accounting only, there is no memory behind the blocks. 1,000
// sequences of 60,000 tokens are decoded, and a prompt of a million tokens runs beside them.
// Every figure is the median of REPEATS (5) runs, with the fastest and the slowest.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cache/block_manager.h"

namespace fathom {
namespace {

constexpr int64_t kMillion = 1 << 20;
constexpr int64_t kChunk = 8192;
constexpr int kNumSequences = 1000;
constexpr int64_t kPrompt = 60'000;

// CPU time: one thread does all the work, and other programs hardly change it.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class Bench {
 public:
  explicit Bench(int repeats) : repeats_(repeats) {}
  // Times `run`, which does `count` things of the name; `prepare` is not timed.
  void Time(
      const std::string& name, int64_t count, const std::function<void()>& run,
      const std::function<void()>& prepare = [] {}) const {
    std::vector<double> us;
    for (int i = 0; i < repeats_; ++i) {
      prepare();
      const double begin = CpuSeconds();
      run();
      us.push_back((CpuSeconds() - begin) * 1e6 / static_cast<double>(count));
    }
    std::sort(us.begin(), us.end());
    const double median = us[us.size() / 2];
    std::printf("%-62s %10.2f us  (%.2f to %.2f)  %10.0f /s\n", name.c_str(), median, us.front(),
                us.back(), 1e6 / median);
  }

 private:
  int repeats_;
};

void Require(bool condition) {
  if (condition) return;
  std::fprintf(stderr, "the memory is too small for what is measured\n");
  std::exit(1);
}

std::vector<TokenId> Tokens(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(static_cast<size_t>(n));
  for (TokenId& t : tokens) t = static_cast<TokenId>(random() % 129'280);
  return tokens;
}

CachePlanner Flash() {
  CacheGeometry g = {{0, 0}, 512, 64, 128, 128, 1};
  for (int layer = 2; layer < 43; ++layer) g.ratios.push_back(layer % 2 == 0 ? 4 : 128);
  g.ratios.push_back(0);
  return CachePlanner(CacheLayout(g, CacheDTypes{CacheDType::kFp8, CacheDType::kFp4}));
}

struct Client {
  SequenceId id = 0;
  std::vector<TokenId> tokens;
  PrefixKeys keys;
};

// Computes positions up to `end` in chunks, each with a resume point at its end.
void Prefill(BlockManager& manager, Client& client, int64_t end) {
  for (int64_t at = manager.length(client.id); at < end;) {
    at = std::min(end, at + kChunk);
    Require(manager.Extend(client.id, at, {.points = {&at, 1}, .rolling = at}));
    manager.Commit(client.id, client.tokens);
  }
}

void RunSteps(const Bench& bench) {
  const CachePlanner planner = Flash();
  const int64_t num_slabs =
      (planner.BytesFor(kNumSequences, kPrompt + 8192) + planner.BytesFor(2, kMillion)) /
      planner.slab_bytes();
  const auto manager = std::move(
      BlockManager::Create(planner, num_slabs, {kNumSequences + 8, kMillion, kChunk, true})
          .value());
  std::printf("%lld slabs, %.1f GiB, tables count in %lld bytes\n",
              static_cast<long long>(num_slabs),
              static_cast<double>(manager->pool().memory_bytes()) / (1 << 30),
              static_cast<long long>(manager->pool().unit_bytes()));
  const PrefixKey seed = PrefixSeed("bench");
  std::vector<Client> clients(kNumSequences);
  for (uint32_t i = 0; i < kNumSequences; ++i) {
    Client& client = clients[i];
    client.tokens = Tokens(kPrompt + 8192, i);
    client.keys = PrefixKeys(seed, "", {});
    client.keys.Reserve(1000);
    client.id = *manager->Admit({}, &client.keys, kPrompt + 8192);
    Prefill(*manager, client, kPrompt);
  }

  bench.Time("decode: Extend and Commit of one position (1,000 sequences)", 256 * kNumSequences,
             [&] {
               for (int step = 0; step < 256; ++step) {
                 for (Client& c : clients) {
                   Require(manager->Extend(c.id, manager->length(c.id) + 1));
                 }
                 for (Client& c : clients) manager->Commit(c.id, c.tokens);
               }
             });
  bench.Time("  the same with a rolling resume point every 64 positions", 256 * kNumSequences, [&] {
    for (int step = 0; step < 256; ++step) {
      for (Client& c : clients) {
        const int64_t end = manager->length(c.id) + 1;
        const bool roll = end % 64 == 0;
        Require(manager->Extend(c.id, end,
                                {.points = {&end, roll ? 1U : 0U}, .rolling = roll ? end : -1}));
      }
      for (Client& c : clients) manager->Commit(c.id, c.tokens);
    }
  });
  bench.Time("Fits beside 1,000 sequences", 1000, [&] {
    for (int i = 0; i < 1000; ++i) Require(manager->Fits(1000, {}));
  });

  Client big;
  big.tokens = Tokens(kMillion, 5);
  bench.Time("keys of a million tokens, per block of 256", kMillion / 256,
             [&] { big.keys = PrefixKeys(seed, "", big.tokens); });
  const auto start = [&] {
    const PrefixMatch match = manager->Match(big.tokens, big.keys);
    const auto id = manager->Admit(match, &big.keys, kMillion);
    Require(id.has_value());
    big.id = *id;
    return match.position;
  };
  // Once it is cached it would hit.
  bench.Time(
      "prefill of a million tokens, per chunk of 8,192", kMillion / kChunk,
      [&] { Prefill(*manager, big, kMillion - 1); },
      [&] {
        if (big.id != 0) manager->Release(big.id);
        big.tokens[0] += 1;
        big.keys = PrefixKeys(seed, "", big.tokens);
        start();
      });
  manager->Release(big.id);
  manager->ClearCopies();
  big.keys = PrefixKeys(seed, "", big.tokens);
  bench.Time("Match of a million cached tokens", 100, [&] {
    for (int i = 0; i < 100; ++i) {
      Require(manager->Match(big.tokens, big.keys).position == kMillion - 1);
    }
  });
  bench.Time("Match, Admit and Release of a million cached tokens", 100, [&] {
    for (int i = 0; i < 100; ++i) {
      Require(start() == kMillion - 1);
      manager->Release(big.id);
      manager->ClearCopies();
    }
  });
}

// Requests come and go in memory that is full of cached prefixes.
void RunChurn(const Bench& bench) {
  const CachePlanner planner = Flash();
  const auto manager =
      std::move(BlockManager::Create(planner, planner.BytesFor(64, 8192) / planner.slab_bytes(),
                                     {64, 65'536, kChunk, true})
                    .value());
  const PrefixKey seed = PrefixSeed("bench");
  std::vector<Client> clients(400);
  for (uint32_t i = 0; i < clients.size(); ++i) {
    clients[i].tokens = Tokens(4000, i);
    clients[i].keys = PrefixKeys(seed, "", clients[i].tokens);
  }
  bench.Time("a request of 4,000 tokens in full memory: all calls", 400, [&] {
    for (Client& client : clients) {
      const PrefixMatch match = manager->Match(client.tokens, client.keys);
      Require(manager->Fits(4000, match));
      client.id = *manager->Admit(match, &client.keys, 4000);
      Prefill(*manager, client, 4000);
      manager->Release(client.id);
      manager->ClearCopies();
    }
  });
  std::printf("  (%lld evictions)\n", static_cast<long long>(manager->num_evictions()));
}

// Prompts shorter than a block: all their resume points hang on the root.
void RunShort(const Bench& bench) {
  const CachePlanner planner = Flash();
  for (const int num_points : {100, 1000, 10'000}) {
    const auto manager =
        std::move(BlockManager::Create(planner, 40'000, {64, 65'536, kChunk, true}).value());
    const PrefixKey seed = PrefixSeed("bench");
    std::vector<Client> clients(static_cast<size_t>(num_points));
    for (uint32_t i = 0; i < clients.size(); ++i) {
      Client& client = clients[i];
      client.tokens = Tokens(100, i);
      client.keys = PrefixKeys(seed, "", client.tokens);
      client.id = *manager->Admit({}, &client.keys, 100);
      Prefill(*manager, client, 100);
      manager->Release(client.id);
    }
    Require(manager->prefixes().num_points() == num_points);
    bench.Time("Match of 101 tokens among " + std::to_string(num_points) + " of 100", 100, [&] {
      for (size_t i = 0; i < 100; ++i) {
        std::vector<TokenId> tokens = clients[i].tokens;
        tokens.push_back(1);
        Require(manager->Match(tokens, clients[i].keys).position == 100);
      }
    });
  }
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  const fathom::Bench bench(argc > 1 ? std::max(1, std::atoi(argv[1])) : 5);
  fathom::RunSteps(bench);
  fathom::RunChurn(bench);
  fathom::RunShort(bench);
  return 0;
}
