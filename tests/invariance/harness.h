// The invariance harness: runs requests through an EngineCore under disturbances, and keeps every
// token and log-probability bit for comparison.
//
// A disturbance decides what else is in a step, where prompts are cut, who loses its memory when,
// which prefixes are cached, and how many threads compute. None of it may show in a result
// (docs/architecture.md, "Invariance").
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_core.h"

namespace fathom::invariance {

// The prompt pattern of the field reports: n ids t(i) = 16 + ((7i + 131s + i*i % 97) mod
// (vocabulary - 32)).
std::vector<TokenId> Pattern(int64_t s, int64_t n, int vocab);

struct Case {
  std::vector<TokenId> prompt;
  int64_t max_tokens = 8;
  double temperature = 0.0;
  int64_t seed = 0;
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<uint32_t> logprob_bits;  // of the chosen token and the three likeliest, per token
  int cached_tokens = 0;
  int num_preemptions = 0;
  bool finished = false;

  // What has to be the same.
  [[nodiscard]] bool SameResult(const Answer& other) const {
    return tokens == other.tokens && logprob_bits == other.logprob_bits;
  }
};

// An engine of its own per setting.
struct Setting {
  std::filesystem::path model;
  std::string backend = "cpu";  // or "guarded" (tests/device/guarded_backend.h)
  std::string backend_plugin;   // with "plugin"
  Numerics numerics = Numerics::kOfficial;
  int num_threads = 1;
  std::optional<CacheDTypes> dtypes;
  bool prefix_caching = true;
  int max_batched_tokens = 512;
  int max_num_seqs = 32;
  int64_t max_model_len = 8192;
  int64_t cache_bytes = int64_t{1} << 30;
  int64_t retention_interval = kDefaultRetentionInterval;
};

struct Disturbance {
  uint64_t seed = 0;            // of everything random below
  bool random_budgets = false;  // every step has a random token budget
  double preempt_chance = 0.0;  // per step: one running request loses its memory
  double arrive_chance = 1.0;   // per step and request: it arrives
};

class Engine {
 public:
  // Fails the test and is empty on error.
  explicit Engine(const Setting& setting);
  [[nodiscard]] bool ok() const { return core_ != nullptr; }

  // All cases together, in the order in which a disturbance lets them arrive.
  std::vector<Answer> Run(const std::vector<Case>& cases, const Disturbance& disturbance);
  // One after the other, each alone.
  std::vector<Answer> RunAlone(const std::vector<Case>& cases);

  [[nodiscard]] EngineCore& core() { return *core_; }
  [[nodiscard]] int vocab() const { return core_->info().vocab_size; }

 private:
  std::unique_ptr<EngineCore> core_;
  RequestId next_id_ = 1;
};

// Where two answers differ, for people; empty when they do not.
std::string Difference(const Answer& want, const Answer& got);

}  // namespace fathom::invariance
