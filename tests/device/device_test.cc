// Models and engines on a backend whose memory is not the host's (guarded_backend.h): everything
// is brought there and back, and the bits are those of the same backend on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/inventory.h"
#include "engine/engine_core.h"
#include "engine/sequence_runner.h"
#include "tests/device/guarded_backend.h"
#include "tests/invariance/harness.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRows = 70;  // more than a device's logits have room for
constexpr int64_t kLength = 140;

Checkpoint TinyA() { return Checkpoint::Open(ProjectPath("tests/data/tiny-a/checkpoint")).value(); }

std::vector<TokenId> Tokens(int64_t n, int vocab) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7 + 3) % vocab));
  }
  return tokens;
}

// Bits of everything that an observer sees, in order.
class BitRecorder final : public ForwardObserver {
 public:
  void OnHidden(int layer, TensorView<const float> hc) override { Add(layer, "hc", hc); }
  void OnTensor(int layer, std::string_view name, TensorView<const float> values) override {
    Add(layer, name, values);
  }
  void OnEntries(int layer, TensorView<const int32_t> entries,
                 TensorView<const int32_t> num_entries) override {
    // Behind a row's number nothing is said.
    for (int64_t i = 0; i < entries.dim(0); ++i) {
      const int32_t n = num_entries.elements()[static_cast<size_t>(i)];
      seen.push_back(std::to_string(layer) + " entries " + std::to_string(n));
      for (const int32_t e : entries.row(i).first(static_cast<size_t>(n))) {
        seen.back() += " " + std::to_string(e);
      }
    }
  }
  void OnRoute(int layer, TensorView<const int32_t> experts,
               TensorView<const float> weights) override {
    Add(layer, "experts", experts);
    Add(layer, "weights", weights);
  }
  std::vector<std::string> seen;

 private:
  template <typename T>
  void Add(int layer, std::string_view name, TensorView<const T> values) {
    uint64_t hash = 1469598103934665603u;
    for (const T value : values.elements()) {
      hash = (hash ^ std::bit_cast<uint32_t>(value)) * 1099511628211u;
    }
    seen.push_back(std::to_string(layer) + " " + std::string(name) + " " +
                   std::to_string(values.size()) + " " + std::to_string(hash));
  }
};

struct Computed {
  std::vector<float> logits;  // of all rows
  std::vector<std::string> seen;
  std::vector<float> layer;  // of a layer alone
};

Computed Compute(Backend& backend, Numerics numerics) {
  const Checkpoint checkpoint = TinyA();
  auto model = Model::Create(checkpoint, backend, kRows, kLength);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  auto runner = SequenceRunner::Create(**model, numerics, kLength);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  const ModelConfig& config = (*model)->config();
  const auto vocab = static_cast<size_t>(config.vocab_size);
  const std::vector<TokenId> tokens = Tokens(kLength, config.vocab_size);
  Computed computed;
  BitRecorder recorder;
  computed.logits.resize(tokens.size() * vocab);
  for (size_t begin = 0; begin < tokens.size(); begin += kRows) {
    const Status status = (*runner)->Step(
        std::span(tokens).subspan(begin, kRows), SequenceRunner::Logits::kAll,
        std::span(computed.logits).subspan(begin * vocab, kRows * vocab), &recorder);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  computed.seen = std::move(recorder.seen);
  (*runner)->Clear();
  computed.layer.resize(static_cast<size_t>(5 * config.hc_mult * config.hidden_size));
  for (size_t i = 0; i < computed.layer.size(); ++i) {
    computed.layer[i] = static_cast<float>(static_cast<int>(i * 37 % 64) - 32) / 32.0f;
  }
  const Status status =
      (*runner)->StepLayer(1, std::span(tokens).first(5),
                           {computed.layer.data(), 5, config.hc_mult, config.hidden_size});
  EXPECT_TRUE(status.ok()) << status.ToString();
  return computed;
}

TEST(GuardedMemory, IsOutOfReachButForCopies) {
  GuardedMemory memory(1 << 20);
  const DeviceBuffer buffer = memory.Allocate(64).value();
  const std::vector<std::byte> in(64, std::byte{7});
  ASSERT_TRUE(memory.CopyIn(buffer.data(), in).ok());
  std::vector<std::byte> out(64);
  ASSERT_TRUE(memory.CopyOut(out, buffer.data()).ok());
  EXPECT_EQ(out, in);
  EXPECT_DEATH(
      {
        volatile const std::byte* const data = buffer.data();
        static_cast<void>(std::to_integer<int>(data[3]));
      },
      "");
}

class DeviceModel : public ::testing::TestWithParam<Numerics> {};

TEST_P(DeviceModel, GivesTheBitsOfTheSameBackendOnTheHost) {
  ReferenceBackend reference(GetParam());
  const Computed want = Compute(reference, GetParam());
  GuardedBackend guarded(GetParam());
  const Computed got = Compute(guarded, GetParam());
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(got.seen, want.seen);
  EXPECT_EQ(got.layer, want.layer);
  EXPECT_EQ(guarded.num_steps(), 3);
  EXPECT_EQ(guarded.num_waits(), 3);
}

INSTANTIATE_TEST_SUITE_P(Numerics, DeviceModel,
                         ::testing::Values(Numerics::kOfficial, Numerics::kExact),
                         [](const auto& numerics) {
                           return numerics.param == Numerics::kExact ? "exact" : "official";
                         });

// Counts what it is shown, and wants one kind of it.
class Wanting final : public ForwardObserver {
 public:
  explicit Wanting(Observed wanted) : wanted_(wanted) {}
  [[nodiscard]] bool Wants(Observed what) const override { return what == wanted_; }
  void OnHidden(int /*layer*/, TensorView<const float> hc) override {
    Note(Observed::kHidden, hc.size());
  }
  void OnTensor(int /*layer*/, std::string_view /*name*/, TensorView<const float> v) override {
    Note(Observed::kTensors, v.size());
  }
  void OnEntries(int /*layer*/, TensorView<const int32_t> entries,
                 TensorView<const int32_t> num_entries) override {
    Note(Observed::kEntries, entries.size() + num_entries.size());
  }
  void OnRoute(int /*layer*/, TensorView<const int32_t> experts,
               TensorView<const float> weights) override {
    Note(Observed::kRoute, experts.size() + weights.size());
  }
  int64_t bytes = 0;  // of all that was shown
  int others = 0;     // calls that were not wanted

 private:
  void Note(Observed what, int64_t size) {
    bytes += 4 * size;
    others += what == wanted_ ? 0 : 1;
  }
  const Observed wanted_;
};

TEST(DeviceObserver, IsBroughtWhatItWantsAndNoMore) {
  const Checkpoint checkpoint = TinyA();
  GuardedBackend backend(Numerics::kOfficial);
  const auto model = Model::Create(checkpoint, backend, kRows, kLength).value();
  const std::vector<TokenId> tokens = Tokens(9, model->config().vocab_size);
  std::vector<float> logits(static_cast<size_t>(model->config().vocab_size));
  const auto bytes_out = [&](ForwardObserver* observer) {
    auto runner = SequenceRunner::Create(*model, Numerics::kOfficial, kLength).value();
    const int64_t before = backend.memory().bytes_out();
    const Status status = runner->Step(tokens, SequenceRunner::Logits::kLast, logits, observer);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return backend.memory().bytes_out() - before;
  };
  const int64_t unseen = bytes_out(nullptr);
  for (const Observed wanted :
       {Observed::kHidden, Observed::kTensors, Observed::kEntries, Observed::kRoute}) {
    SCOPED_TRACE(static_cast<int>(wanted));
    Wanting observer(wanted);
    const int64_t seen = bytes_out(&observer);
    EXPECT_EQ(seen, unseen + observer.bytes);
    EXPECT_GT(observer.bytes, 0);
    EXPECT_EQ(observer.others, 0);
  }
}

TEST(DeviceWeights, AreCopiedOnceWithProgressAndWithoutMtpBlocks) {
  const Checkpoint checkpoint = TinyA();
  GuardedBackend backend(Numerics::kOfficial);
  std::vector<std::pair<uint64_t, uint64_t>> told;
  WeightUpload upload;
  upload.progress = [&](uint64_t done, uint64_t total) { told.emplace_back(done, total); };
  const auto model = Model::Create(checkpoint, backend, 4, 256, upload);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_TRUE((*model)->weights().mtp.empty());
  uint64_t main_bytes = 0;
  for (const PartBytes& part : InventoryOf(checkpoint.config())) main_bytes += part.main_bytes;
  const auto moved = static_cast<uint64_t>((*model)->weights().moved_bytes());
  // Norms are widened, and tensors begin at multiples of 256 bytes.
  EXPECT_GE(moved, main_bytes);
  EXPECT_LT(moved, main_bytes + 512 * checkpoint.tensors().size());
  EXPECT_EQ(static_cast<int64_t>(moved), WeightSizesOf(checkpoint.config()).total());
  EXPECT_LT(moved, checkpoint.total_bytes());
  EXPECT_GE(backend.memory().bytes_in(), static_cast<int64_t>(main_bytes));
  ASSERT_FALSE(told.empty());
  for (size_t i = 1; i < told.size(); ++i) EXPECT_GT(told[i].first, told[i - 1].first);
  EXPECT_EQ(told.back().first, told.back().second);
  EXPECT_GT(told.back().second, moved - DeviceMemory::kAlignment);
}

TEST(DeviceWeights, ThatDoNotFitAreRefusedWithTheSizesAndWhatWouldHelp) {
  const Checkpoint checkpoint = TinyA();
  GuardedBackend backend(Numerics::kOfficial, 200'000);
  const auto model = Model::Create(checkpoint, backend, 4, 256);
  EXPECT_EQ(model.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(model.status().message(),
              AllOf(HasSubstr("the weights take"), HasSubstr("guarded memory"),
                    HasSubstr("0.00 GB are free"), HasSubstr("--backend cpu")));
  EXPECT_EQ(backend.memory().bytes_in(), 0);
}

TEST(DeviceModelMemory, ActivationsThatDoNotFitNameTheStep) {
  const Checkpoint checkpoint = TinyA();
  GuardedBackend probe(Numerics::kOfficial);
  int64_t weights = 0;
  {
    const auto model = Model::Create(checkpoint, probe, 1, 256);
    ASSERT_TRUE(model.ok());
    weights = (*model)->weights().moved_bytes();
  }
  GuardedBackend backend(Numerics::kOfficial, weights + (1 << 20));
  const auto model = Model::Create(checkpoint, backend, 8192, 8192);
  EXPECT_EQ(model.status().code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(model.status().message(),
              AllOf(HasSubstr("8192 tokens"), HasSubstr("--max-num-batched-tokens")));
}

TEST(DeviceModelMemory, LogitsComeBackInPiecesOfBoundedSize) {
  GuardedBackend backend(Numerics::kOfficial);
  const Checkpoint checkpoint = TinyA();
  auto model = Model::Create(checkpoint, backend, 256, 256);
  ASSERT_TRUE(model.ok());
  auto runner = SequenceRunner::Create(**model, Numerics::kOfficial, 256);
  ASSERT_TRUE(runner.ok());
  const auto vocab = static_cast<size_t>(checkpoint.config().vocab_size);
  const std::vector<TokenId> tokens = Tokens(100, checkpoint.config().vocab_size);
  std::vector<float> logits(100 * vocab);
  ASSERT_TRUE((*runner)->Step(tokens, SequenceRunner::Logits::kAll, logits).ok());
  EXPECT_EQ(backend.memory().bytes_out(), static_cast<int64_t>(4 * logits.size()));
  EXPECT_EQ(backend.memory().largest_copy_out(), static_cast<int64_t>(4 * 64 * vocab));
}

TEST(DeviceModelErrors, WhatTheDeviceFindsIsTheStepsErrorAndTheSequenceStaysAsItWas) {
  GuardedBackend backend(Numerics::kOfficial);
  const Checkpoint checkpoint = TinyA();
  auto model = Model::Create(checkpoint, backend, kRows, kLength);
  ASSERT_TRUE(model.ok());
  auto runner = SequenceRunner::Create(**model, Numerics::kOfficial, kLength);
  ASSERT_TRUE(runner.ok());
  const std::vector<TokenId> tokens = Tokens(40, checkpoint.config().vocab_size);
  ASSERT_TRUE((*runner)->Step(std::span(tokens).first(20), SequenceRunner::Logits::kNone, {}).ok());
  backend.FailNext(DataLoss("tid2eid: token 5 names expert 99 of 8"));
  std::vector<float> logits(static_cast<size_t>(checkpoint.config().vocab_size));
  const Status failed =
      (*runner)->Step(std::span(tokens).last(20), SequenceRunner::Logits::kLast, logits);
  EXPECT_EQ(failed.code(), StatusCode::kDataLoss);
  EXPECT_EQ((*runner)->length(), 20);
  // A step that fails on the host leaves nothing of a device's findings to the next one.
  backend.FailNext(DataLoss("left over"));
  StepPlan empty;
  EXPECT_EQ((*model)->Forward(empty, {}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      (*runner)->Step(std::span(tokens).last(20), SequenceRunner::Logits::kLast, logits).ok());
}

// An engine on `memory_bytes` of guarded memory.
LocalEngineOptions OnDevice(int64_t memory_bytes, GuardedBackend** made = nullptr) {
  LocalEngineOptions options;
  options.make_backend = [memory_bytes, made](Numerics numerics) {
    auto backend = std::make_unique<GuardedBackend>(numerics, memory_bytes);
    if (made != nullptr) *made = backend.get();
    return Result<std::unique_ptr<Backend>>(std::move(backend));
  };
  options.max_batched_tokens = 64;
  options.max_num_seqs = 4;
  options.max_model_len = 512;
  return options;
}

TEST(DeviceEngine, TheCacheFillsTheDeviceToItsShare) {
  constexpr int64_t kTotal = int64_t{96} << 20;
  GuardedBackend* backend = nullptr;
  LocalEngineOptions options = OnDevice(kTotal, &backend);
  options.cache_budget.device_share = 0.75;
  const auto core = EngineCore::Create(TinyA(), {}, options);
  ASSERT_TRUE(core.ok()) << core.status().ToString();
  const std::optional<MemoryState>& state = (*core)->device_memory();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->name, "guarded memory");
  const int64_t used = state->total_bytes - state->free_bytes;
  EXPECT_LE(used, kTotal / 4 * 3 + 4096);
  EXPECT_GT(used, kTotal / 4 * 3 - (*core)->cache_size().slab_bytes - 4096);
  EXPECT_EQ((*core)->weights().device, "guarded memory");
  EXPECT_GT((*core)->weights().device_bytes, 0);
}

TEST(DeviceEngine, BudgetsThatDoNotFitAreRefusedWithTheSizes) {
  const auto refused = [](const LocalEngineOptions& options) {
    const auto core = EngineCore::Create(TinyA(), {}, options);
    EXPECT_FALSE(core.ok());
    return core.ok() ? "" : core.status().message();
  };
  LocalEngineOptions options = OnDevice(int64_t{64} << 20);
  options.cache_budget.bytes = int64_t{64} << 20;
  EXPECT_THAT(refused(options), AllOf(HasSubstr("0.07 GB; "), HasSubstr("--kv-cache-memory-bytes"),
                                      HasSubstr("guarded memory has")));
  options.cache_budget.bytes = 0;
  options.cache_budget.device_share = 0.01;
  EXPECT_THAT(refused(options),
              AllOf(HasSubstr("--gpu-memory-utilization"), HasSubstr("guarded memory has")));
  options.cache_budget.device_share = 1.5;
  EXPECT_THAT(refused(options), HasSubstr("(0, 1]"));
}

// Blocks that two answers share are copied inside the device's memory before one goes on.
TEST(DeviceEngine, CachedPrefixesAndPreemptionsGiveTheAnswersOfTheHost) {
  std::vector<invariance::Answer> want;
  for (const char* backend : {"reference", "guarded"}) {
    invariance::Setting setting;
    setting.model = ProjectPath("tests/data/tiny-a/checkpoint");
    setting.backend = backend;
    setting.max_batched_tokens = 64;
    setting.max_num_seqs = 4;
    setting.max_model_len = 512;
    setting.cache_bytes = int64_t{8} << 20;
    invariance::Engine engine(setting);
    ASSERT_TRUE(engine.ok());
    std::vector<invariance::Case> cases;
    for (const int64_t length : {7, 40, 70}) {
      cases.push_back({invariance::Pattern(3, length, engine.vocab()), 5, 0.0, length});
    }
    invariance::Disturbance disturbance;
    disturbance.seed = 5;
    disturbance.random_budgets = true;
    disturbance.arrive_chance = 0.5;
    disturbance.preempt_chance = 0.2;
    std::vector<invariance::Answer> got = engine.Run(cases, disturbance);
    for (const invariance::Answer& warm : engine.Run(cases, disturbance)) {
      EXPECT_GT(warm.cached_tokens, 0);
      got.push_back(warm);
    }
    const auto* guarded = dynamic_cast<const GuardedBackend*>(&engine.core().backend());
    if (guarded == nullptr) {
      want = std::move(got);
      continue;
    }
    EXPECT_GT(guarded->guarded_memory().copies_within(), 0);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(want[i].SameResult(got[i])) << invariance::Difference(want[i], got[i]);
    }
  }
}

TEST(CudaOptions, ThatTheCudaBackendHasNoUseForAreRefusedByName) {
  const auto refused = [](const std::function<void(LocalEngineOptions&)>& change) {
    LocalEngineOptions options;
    options.backend = "cuda";
    change(options);
    const Status status = CheckBackendOptions(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refused([](auto& o) { o.num_threads = 2; }), HasSubstr("--threads"));
  EXPECT_THAT(refused([](auto& o) { o.numa = NumaMode::kOff; }), HasSubstr("--numa"));
  EXPECT_THAT(refused([](auto& o) { o.weights = WeightsMode::kCopy; }),
              HasSubstr("--weights copy"));
  CpuOptions cpu;
  cpu.int8_activations = true;
  EXPECT_THAT(MakeBackend("cuda", Numerics::kOfficial, 1, cpu).status().message(),
              HasSubstr("--cpu-activations int8"));
  cpu = {};
  cpu.int8_dense = true;
  EXPECT_THAT(MakeBackend("cuda", Numerics::kOfficial, 1, cpu).status().message(),
              HasSubstr("--cpu-dense int8"));
}

}  // namespace
}  // namespace fathom
