// Steps that a GPU records and does again, and steps with two lanes, give the bits of steps that it
// was asked for one by one in one: at every size, filled up or not, in every mode, with prompts and
// decoding sequences together, while sequences grow over the ends of entries, pages and windows. On
// a GPU, and in the build that runs the kernels on the CPU (backend/cuda/emulation), there in
// several of the orders that the lanes leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/choose_token.h"
#include "backend/cuda/cuda_backend.h"
#ifdef FATHOM_CUDA_EMULATED
#include "backend/cuda/emulation/streams.h"
#endif
#include "cache/cache_memory.h"
#include "engine/cache_sizing.h"
#include "engine/step_builder.h"
#include "model/model.h"
#include "tests/gpu.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

using ::testing::HasSubstr;

// Kernels on the CPU take a tenth of a second for a row.
#ifdef FATHOM_CUDA_EMULATED
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif

constexpr int kMaxRows = 64;
constexpr int kMaxSequences = kEmulated ? 3 : 50;
constexpr int64_t kMaxLength = 700;

// Tokens of a sequence that a step computes.
struct Share {
  int sequence = 0;
  int num_tokens = 0;
};
using Steps = std::vector<std::vector<Share>>;

// Sequences with even numbers are sampled so, where a test samples; logits of the others are the
// host's.
bool IsSampled(const Share& share) { return share.sequence % 2 == 0; }
SampleRow RowOf(const Share& share) {
  SampleRow row;
  row.top_p = 0.9;
  row.random = 0x9E3779B97F4A7C15u * static_cast<uint64_t>(share.sequence + 1);
  row.logprob = true;
  return row;
}

// While it lives, what events leave open is done in one of the emulated orders.
class OrderOfStep {
 public:
#ifdef FATHOM_CUDA_EMULATED
  explicit OrderOfStep(size_t step) {
    constexpr emulation::Order kOrders[] = {emulation::Order::kShuffled, emulation::Order::kLate,
                                            emulation::Order::kOthersFirst,
                                            emulation::Order::kAtOnce};
    emulation::SetOrder(kOrders[step % std::size(kOrders)], step);
  }
  ~OrderOfStep() { emulation::ResetOrder(); }
#else
  explicit OrderOfStep(size_t /*step*/) {}
#endif
};

// A model with sequences on a backend of its own.
class Batch {
 public:
  explicit Batch(const Checkpoint& checkpoint) {
    backend_ = CudaBackend::Create(Numerics::kOfficial).value();
    model_ = Model::Create(checkpoint, *backend_, kMaxRows, kMaxLength).value();
    const CachePlanner planner = PlannerFor(model_->config(), Numerics::kOfficial, {}).value();
    BlockManagerOptions options;
    options.max_sequences = kMaxSequences;
    options.max_positions = kMaxLength;
    options.max_step_positions = kMaxRows;
    options.prefix_caching = false;
    const int64_t slabs = planner.BytesFor(kMaxSequences, kMaxLength) / planner.slab_bytes();
    manager_ = BlockManager::Create(planner, slabs, options).value();
    memory_ = CacheMemory::Create(planner.layout(), manager_->pool(), backend_->memory()).value();
    builder_ = std::make_unique<StepBuilder>(kMaxRows, kMaxSequences, memory_->pages());
  }

  [[nodiscard]] Model& model() { return *model_; }

  // New sequences, the same ones every time.
  void Clear() {
    for (const ScheduledRequest& s : sequences_) manager_->Release(s.sequence);
    sequences_.assign(kMaxSequences, {});
    const int vocab = model_->config().vocab_size;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      std::vector<TokenId>& tokens = sequences_[i].tokens;
      for (int64_t t = 0; t < kMaxLength; ++t) {
        tokens.push_back(
            static_cast<TokenId>((t * t * 31 + t * 7 + 3 + 13 * static_cast<int64_t>(i)) % vocab));
      }
      sequences_[i].sequence = manager_->Admit({}, nullptr, kMaxLength).value();
    }
  }

  // Logits of the last token of each share, as bits.
  std::vector<uint32_t> Step(const std::vector<Share>& shares, Status* status = nullptr) {
    std::vector<ScheduledRows> rows;
    for (const Share& share : shares) {
      ScheduledRequest& s = sequences_[static_cast<size_t>(share.sequence)];
      EXPECT_TRUE(manager_->Extend(s.sequence, s.computed + share.num_tokens));
      rows.push_back({&s, share.num_tokens, true});
    }
    EXPECT_TRUE(memory_->CarryOut(*manager_).ok());
    const StepPlan& plan = builder_->Build(rows, *manager_);
    const auto vocab = static_cast<int64_t>(model_->config().vocab_size);
    const size_t wanted = shares.size() - sampling_.indices.size();
    std::vector<float> logits(wanted * static_cast<size_t>(vocab), -1.0f);
    const TensorView<float> view(logits.data(), static_cast<int64_t>(wanted), vocab);
    const Status done = sampling_.indices.empty() ? model_->Forward(plan, view)
                                                  : model_->ForwardAndSample(plan, sampling_, view);
    if (status != nullptr) *status = done;
    EXPECT_TRUE(status != nullptr || done.ok()) << done.ToString();
    for (const ScheduledRows& r : rows) {
      manager_->Commit(r.request->sequence, r.request->tokens);
      r.request->computed += r.num_tokens;
    }
    std::vector<uint32_t> bits;
    for (const float v : logits) bits.push_back(std::bit_cast<uint32_t>(v));
    return bits;
  }

  // Tokens and log-probabilities of the shares that are sampled, then logits of the others.
  std::vector<uint32_t> SampledStep(const std::vector<Share>& shares) {
    std::vector<int> indices;
    std::vector<SampleRow> rows;
    for (size_t i = 0; i < shares.size(); ++i) {
      if (!IsSampled(shares[i])) continue;
      indices.push_back(static_cast<int>(i));
      rows.push_back(RowOf(shares[i]));
    }
    std::vector<SampledToken> tokens(rows.size());
    sampling_ = {indices, rows, tokens};
    const std::vector<uint32_t> logits = Step(shares);
    sampling_ = {};
    std::vector<uint32_t> bits;
    for (const SampledToken& sampled : tokens) {
      bits.push_back(static_cast<uint32_t>(sampled.token));
      bits.push_back(std::bit_cast<uint32_t>(sampled.logprob));
    }
    bits.insert(bits.end(), logits.begin(), logits.end());
    return bits;
  }

  std::vector<std::vector<uint32_t>> Run(const Steps& steps) {
    Clear();
    std::vector<std::vector<uint32_t>> bits;
    for (size_t i = 0; i < steps.size(); ++i) {
      const OrderOfStep order(i);
      bits.push_back(Step(steps[i]));
    }
    return bits;
  }

 private:
  std::unique_ptr<CudaBackend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<CacheMemory> memory_;
  std::unique_ptr<StepBuilder> builder_;
  std::vector<ScheduledRequest> sequences_;
  StepSampling sampling_;
};

// Three sequences get prompts of different lengths; then all kinds of steps come in turn, on a GPU
// over the end of an entry of ratio 128.
Steps MixedSteps() {
  Steps steps;
  if (!kEmulated) steps = {{{0, 60}}, {{0, 60}}, {{0, 2}, {1, 30}}};
  steps.push_back({{0, 2}, {1, 3}});
  steps.push_back({{2, 1}});
  for (int round = 0; round < 3; ++round) {
    steps.push_back({{0, 1}, {1, 1}, {2, 1}});
    steps.push_back({{2, 3}, {0, 1}});
    if (kEmulated) continue;
    steps.push_back({{0, 1}});
    steps.push_back({{2, 5}, {0, 1}, {1, 2}});
    steps.push_back({{1, 1}, {0, 1}});
  }
  return steps;
}

// As many sequences as rows, for every size: three times, so that it is recorded and done again.
Steps DecodeSteps(const std::vector<int>& sizes) {
  Steps steps;
  for (int s = 0; s < kMaxSequences; ++s)
    steps.push_back({{s, kEmulated ? 1 + s : 3 + 5 * s % 37}});
  for (const int size : sizes) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<Share> shares;
      for (int s = 0; s < size; ++s) shares.push_back({s, 1});
      steps.push_back(std::move(shares));
    }
  }
  return steps;
}

class StepGraphsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FATHOM_REQUIRE_GPU_FOR("cuda");
    checkpoint_ = std::make_unique<Checkpoint>(
        Checkpoint::Open(ProjectPath("tests/data/tiny-a/checkpoint")).value());
  }
  using Bits = std::vector<std::vector<uint32_t>>;

  // In one lane.
  Bits Directly(const Steps& steps) {
    Batch batch(*checkpoint_);
    batch.model().SerialiseStreams(true);
    return batch.Run(steps);
  }
  // Of MixedSteps.
  const Bits& MixedBits() {
    static const Bits bits = Directly(MixedSteps());
    return bits;
  }
  void ExpectBits(const Steps& steps, const GraphOptions& options, const Bits& want) {
    Batch batch(*checkpoint_);
    ASSERT_TRUE(batch.model().RecordSteps(options).ok());
    const Bits got = batch.Run(steps);
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(got[i], want[i]) << "step " << i;
    replays_ = batch.model().graphs()->num_replays();
    recordings_ = batch.model().graphs()->num_recordings();
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  int64_t replays_ = 0;
  int recordings_ = 0;
};

TEST_F(StepGraphsTest, GiveTheSameBitsInEveryMode) {
  std::vector<GraphMode> modes = {GraphMode::kFullAndPiecewise, GraphMode::kFull};
  if (!kEmulated)
    modes.insert(modes.end(),
                 {GraphMode::kNone, GraphMode::kFullDecodeOnly, GraphMode::kPiecewise});
  const Steps steps = MixedSteps();
  const Bits& want = MixedBits();
  for (const GraphMode mode : modes) {
    SCOPED_TRACE(GraphModeName(mode));
    ExpectBits(steps, {mode, {}}, want);
    EXPECT_EQ(replays_ > 0, mode != GraphMode::kNone);
  }
}

// Behind more entries than are selected, each kind of step directly, then recorded.
TEST_F(StepGraphsTest, GiveTheSameBitsInTwoLanesAndInOne) {
  const int64_t topk = checkpoint_->config().index_topk;
  const auto prompt = static_cast<int>(4 * topk + 3);
  ASSERT_LE(prompt, kMaxRows);
  Steps steps = {{{0, prompt}}};
  for (const int rows : {1, 2}) {
    for (int repeat = 0; repeat < (kEmulated ? 2 : 5); ++repeat) steps.push_back({{0, rows}});
  }
  const Bits want = Directly(steps);
  ExpectBits(steps, {GraphMode::kFullAndPiecewise, {1, 2}}, want);
  EXPECT_GT(replays_, 0);
  if (kEmulated) return;
  ExpectBits(steps, {GraphMode::kNone, {}}, want);
  Batch serial(*checkpoint_);
  serial.model().SerialiseStreams(true);
  ASSERT_TRUE(serial.model().RecordSteps({}).ok());
  EXPECT_EQ(serial.Run(steps), want);
}

TEST_F(StepGraphsTest, GiveTheSameBitsAtEverySize) {
  const std::vector<int> sizes = DefaultGraphSizes(kMaxSequences);
  const Steps steps = DecodeSteps(sizes);
  ExpectBits(steps, {GraphMode::kFull, sizes}, Directly(steps));
  EXPECT_GE(recordings_, static_cast<int>(sizes.size()));
}

TEST_F(StepGraphsTest, FillUpStepsOfOtherSizes) {
  const Steps steps = DecodeSteps(kEmulated ? std::vector<int>{1} : std::vector<int>{1, 3});
  ExpectBits(steps, {GraphMode::kFullDecodeOnly, {2, 4}}, Directly(steps));
  EXPECT_EQ(recordings_, kEmulated ? 1 : 2);
}

// Sampling reads what a recording wrote, from rows of its own order.
TEST_F(StepGraphsTest, AreSampledLikeDirectSteps) {
  const Steps steps = MixedSteps();
  const Bits& logits = MixedBits();
  const auto vocab = static_cast<size_t>(checkpoint_->config().vocab_size);
  std::vector<TokenCandidate> scratch;
  std::vector<GraphMode> modes = {GraphMode::kFullAndPiecewise};
  if (!kEmulated) modes.push_back(GraphMode::kNone);
  for (const GraphMode mode : modes) {
    SCOPED_TRACE(GraphModeName(mode));
    Batch batch(*checkpoint_);
    ASSERT_TRUE(batch.model().RecordSteps({mode, {}}).ok());
    batch.Clear();
    for (size_t i = 0; i < steps.size(); ++i) {
      std::vector<uint32_t> want, rest;
      for (size_t s = 0; s < steps[i].size(); ++s) {
        const auto bits = std::span(logits[i]).subspan(s * vocab, vocab);
        if (!IsSampled(steps[i][s])) {
          rest.insert(rest.end(), bits.begin(), bits.end());
          continue;
        }
        std::vector<float> row;
        for (const uint32_t b : bits) row.push_back(std::bit_cast<float>(b));
        const std::vector<float> raw = row;
        const TokenId token = ChooseToken(RowOf(steps[i][s]), row, scratch);
        want.push_back(static_cast<uint32_t>(token));
        want.push_back(std::bit_cast<uint32_t>(
            SumLogits(raw).LogProbability(raw[static_cast<size_t>(token)])));
      }
      want.insert(want.end(), rest.begin(), rest.end());
      EXPECT_EQ(batch.SampledStep(steps[i]), want) << "step " << i;
    }
    EXPECT_EQ(batch.model().graphs()->num_replays() > 0, mode != GraphMode::kNone);
  }
}

TEST_F(StepGraphsTest, RefuseWhatOperationsRefuse) {
  Batch batch(*checkpoint_);
  ASSERT_TRUE(batch.model().RecordSteps({GraphMode::kFull, {}}).ok());
  batch.Clear();
  for (int i = 0; i < 4; ++i) batch.Step({{0, 1}});
  ASSERT_GT(batch.model().graphs()->num_replays(), 0);
  // A plan without the blocks that the step looks at.
  const TokenId token = 1;
  const Position position = 300;
  const SequenceRows rows = {0, 1, position};
  const std::vector<BlockTable> no_tables(1);
  const std::vector<LayerPages> pages(static_cast<size_t>(batch.model().config().num_layers));
  StepPlan plan;
  plan.token_ids = {&token, 1};
  plan.positions = {&position, 1};
  plan.sequences = {&rows, 1};
  for (auto& tables : plan.tables) tables = no_tables;
  plan.pages = pages;
  Status status = batch.model().Forward(plan, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  const TokenId unknown = batch.model().config().vocab_size;
  plan.token_ids = {&unknown, 1};
  status = batch.model().Forward(plan, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("outside the vocabulary"));
}

#ifdef FATHOM_CUDA_EMULATED
TEST_F(StepGraphsTest, WithoutRoomForARecordingStepsGoOnDirectly) {
  for (const GraphMode mode : {GraphMode::kFull, GraphMode::kPiecewise}) {
    SCOPED_TRACE(GraphModeName(mode));
    Batch batch(*checkpoint_);
    const Steps steps = {{{0, 1}}, {{0, 1}}, {{0, 1}}, {{0, 1}}};
    const auto want = batch.Run(steps);
    ASSERT_TRUE(batch.model().RecordSteps({mode, {}}).ok());
    emulation::LetGraphsFindNoMemory(true);
    EXPECT_EQ(batch.Run(steps), want);
    emulation::LetGraphsFindNoMemory(false);
    EXPECT_EQ(batch.model().graphs()->mode(), GraphMode::kNone);
    EXPECT_EQ(batch.model().graphs()->num_replays(), 0);
  }
}
#endif

TEST(GraphModes, HaveVllmsNames) {
  EXPECT_EQ(GraphModeOf("FULL_DECODE_ONLY"), GraphMode::kFullDecodeOnly);
  EXPECT_EQ(GraphModeOf("full"), std::nullopt);
  for (const GraphMode mode : {GraphMode::kNone, GraphMode::kPiecewise, GraphMode::kFull,
                               GraphMode::kFullDecodeOnly, GraphMode::kFullAndPiecewise}) {
    EXPECT_EQ(GraphModeOf(GraphModeName(mode)), mode);
  }
}

TEST(GraphSizes, AreDenseForFewRows) {
  EXPECT_EQ(DefaultGraphSizes(40), (std::vector<int>{1, 2, 4, 8, 16, 24, 32, 40}));
  EXPECT_EQ(DefaultGraphSizes(512).back(), 512);
  EXPECT_TRUE(DefaultGraphSizes(0).empty());
}

}  // namespace
}  // namespace fathom
