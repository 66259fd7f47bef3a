// Where weights lie, how many nodes there are and whether experts are prefetched: never in a bit of
// a result.
#include "engine/local_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/local_engine.h"
#include "engine/sequence_runner.h"

namespace fathom {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kChunk = 40;
constexpr int64_t kLength = 200;
constexpr const char* kNano = FATHOM_SOURCE_DIR "/models/fathom-nano";

HostMemory Memory(int64_t available) { return {available * 2, available}; }

LocalEngineOptions Options(WeightsMode mode) {
  LocalEngineOptions options;
  options.num_threads = 2;
  options.weights = mode;
  return options;
}

struct Loaded {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<LocalModel> model;
};

Loaded Load(const LocalEngineOptions& options, const std::filesystem::path& directory = kNano) {
  auto opened = Checkpoint::Open(directory);
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  Loaded loaded{std::make_unique<Checkpoint>(std::move(opened).value()), nullptr};
  auto model = LocalModel::Load(*loaded.checkpoint, options, kChunk, kLength);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  if (model.ok()) loaded.model = std::move(model).value();
  return loaded;
}

// Bits of the logits of all positions.
std::vector<uint32_t> Logits(LocalModel& local) {
  Model& model = local.model();
  auto runner = SequenceRunner::Create(model, Numerics::kOfficial, kLength);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  const auto vocab = static_cast<size_t>(model.config().vocab_size);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < kLength; ++i) {
    tokens.push_back(static_cast<TokenId>((i * i * 31 + i * 7 + 3) % model.config().vocab_size));
  }
  std::vector<float> logits(kChunk * vocab);
  std::vector<uint32_t> bits;
  for (size_t begin = 0; begin < tokens.size(); begin += kChunk) {
    const Status status = (*runner)->Step(std::span(tokens).subspan(begin, kChunk),
                                          SequenceRunner::Logits::kAll, logits);
    EXPECT_TRUE(status.ok()) << status.ToString();
    for (const float x : logits) bits.push_back(std::bit_cast<uint32_t>(x));
  }
  return bits;
}

TEST(LocalModel, WeightsInAnyMemoryGiveTheSameBits) {
  const Loaded mapped = Load(Options(WeightsMode::kMmap));
  const std::vector<uint32_t> expected = Logits(*mapped.model);
  EXPECT_FALSE(mapped.model->weights().exceed_memory);
  EXPECT_FALSE(mapped.model->weights().expert_prefetch);
  for (const WeightsMode mode : {WeightsMode::kCopy, WeightsMode::kHugePages}) {
    const Loaded copied = Load(Options(mode));
    EXPECT_EQ(Logits(*copied.model), expected) << WeightsModeName(mode);
    const WeightsReport& report = copied.model->weights();
    EXPECT_EQ(report.mode, mode);
    EXPECT_EQ(report.bytes, copied.checkpoint->total_bytes());
    EXPECT_EQ(report.num_files, 2);
    EXPECT_FALSE(report.expert_prefetch);
    EXPECT_EQ(report.huge_page_bytes, copied.checkpoint->HugePageBytes());
  }
}

TEST(LocalModel, NodesChangeNoBit) {
  const std::vector<uint32_t> expected = Logits(*Load(Options(WeightsMode::kMmap)).model);
  for (const std::vector<int>& nodes : {std::vector<int>{1, 1}, {2, 1}, {1, 1, 1}}) {
    ThreadPlacement placement;
    for (size_t node = 0; node < nodes.size(); ++node) {
      placement.node_ids.push_back(0);
      for (int t = 0; t < nodes[node]; ++t) {
        placement.threads.push_back({static_cast<int>(node), {}});
      }
    }
    auto checkpoint = Checkpoint::Open(kNano);
    ASSERT_TRUE(checkpoint.ok());
    const LocalEngineOptions options = Options(WeightsMode::kCopy);
    auto local = LocalModel::Load(*checkpoint, options, kChunk, kLength, placement);
    ASSERT_TRUE(local.ok()) << local.status().ToString();
    EXPECT_EQ((*local)->weights().num_nodes, static_cast<int>(nodes.size()));
    EXPECT_EQ(Logits(**local), expected);
  }
}

TEST(LocalModel, CheckpointsLargerThanMemoryRunAndAreDescribed) {
  const std::vector<uint32_t> expected = Logits(*Load(Options(WeightsMode::kMmap)).model);
  LocalEngineOptions options = Options(WeightsMode::kMmap);
  options.memory = Memory(8'000'000);
  bool was_read = false;
  options.load_progress = [&](uint64_t, uint64_t) { was_read = true; };
  const Loaded loaded = Load(options);
  const WeightsReport& report = loaded.model->weights();
  EXPECT_TRUE(report.exceed_memory);
  EXPECT_TRUE(report.expert_prefetch);
  EXPECT_FALSE(was_read);
  EXPECT_EQ(report.memory.available_bytes, 8'000'000);
  EXPECT_GT(report.token_expert_bytes, 0u);
  EXPECT_GT(report.token_dense_bytes, 0u);
  EXPECT_GT(report.expert_bytes, report.token_expert_bytes);
  EXPECT_LT(report.token_expert_bytes + report.token_dense_bytes, report.bytes);
  EXPECT_EQ(Logits(*loaded.model), expected);
}

TEST(LocalModel, StepsAskForTheExpertsTheyChoose) {
  class Choices final : public ForwardObserver {
   public:
    void OnRoute(int layer, TensorView<const int32_t> experts, TensorView<const float>) override {
      for (const int32_t e : experts.elements()) chosen.insert({layer, e});
    }
    std::set<std::pair<int, int>> chosen;
  };
  const Loaded loaded = Load(Options(WeightsMode::kMmap));
  Model& model = loaded.model->model();
  std::vector<std::span<const std::byte>> asked;
  PageHints hints;
  hints.in_memory = [](std::span<const std::byte>) { return false; };
  hints.will_need = [&](std::span<const std::byte> range) { asked.push_back(range); };
  model.SetExpertPrefetch(
      std::make_unique<ExpertPrefetch>(model.weights(), uint64_t{1} << 40, hints));
  auto runner = SequenceRunner::Create(model, Numerics::kOfficial, kLength);
  ASSERT_TRUE(runner.ok());
  Choices choices;
  const std::vector<TokenId> tokens = {5, 17, 1234};
  ASSERT_TRUE((*runner)->Step(tokens, SequenceRunner::Logits::kNone, {}, &choices).ok());
  ASSERT_FALSE(choices.chosen.empty());
  const auto was_asked = [&](const void* data) {
    for (const auto range : asked) {
      if (range.data() <= data && data < range.data() + range.size()) return true;
    }
    return false;
  };
  for (int layer = 0; layer < model.config().num_layers; ++layer) {
    const auto& experts = model.weights().layers[static_cast<size_t>(layer)].ffn.routed;
    for (int e = 0; e < model.config().num_experts; ++e) {
      EXPECT_EQ(was_asked(experts[static_cast<size_t>(e)].w2.data),
                choices.chosen.contains({layer, e}))
          << "layer " << layer << ", expert " << e;
    }
  }
}

TEST(LocalModel, CopiesThatDoNotFitAreRefusedWithTheSizes) {
  for (const WeightsMode mode : {WeightsMode::kCopy, WeightsMode::kHugePages}) {
    LocalEngineOptions options = Options(mode);
    options.memory = Memory(10'000'000);
    auto checkpoint = Checkpoint::Open(kNano);
    ASSERT_TRUE(checkpoint.ok());
    const auto refused = LocalModel::Load(*checkpoint, options, kChunk, kLength);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.status().message(),
                AllOf(HasSubstr("--weights " + std::string(WeightsModeName(mode))),
                      HasSubstr("0.02 GB"), HasSubstr("0.01 GB"), HasSubstr("--weights mmap")));
    options.memory = HostMemory();  // a system that does not say
    EXPECT_TRUE(CheckWeightsFit(options, DemandOf(options, *checkpoint)).ok());
  }
}

TEST(LocalModel, TheCacheGetsAShareOfWhatACopyLeaves) {
  auto checkpoint = Checkpoint::Open(kNano);
  ASSERT_TRUE(checkpoint.ok());
  LocalEngineOptions options = Options(WeightsMode::kMmap);
  options.memory = Memory(4'000'000'000);
  options.max_model_len = 2048;
  const auto mapped = SizeEngineCache(checkpoint->config(), options, 0);
  const auto copied = SizeEngineCache(checkpoint->config(), options, 2'000'000'000);
  ASSERT_TRUE(mapped.ok() && copied.ok());
  EXPECT_NEAR(static_cast<double>(copied->num_slabs), static_cast<double>(mapped->num_slabs) / 2,
              1.0);
}

TEST(LocalModel, Int8CopiesNeedMemoryOfTheirOwn) {
  auto checkpoint = Checkpoint::Open(kNano);
  ASSERT_TRUE(checkpoint.ok());
  LocalEngineOptions options = Options(WeightsMode::kMmap);
  EXPECT_EQ(DemandOf(options, *checkpoint).total(), 0u);
  options.cpu.int8_dense = true;
  const WeightDemand demand = DemandOf(options, *checkpoint);
  EXPECT_EQ(demand.copied, 0u);
  EXPECT_GT(demand.int8, 0u);
  EXPECT_LT(demand.int8, checkpoint->total_bytes());
  options.weights = WeightsMode::kCopy;
  EXPECT_EQ(DemandOf(options, *checkpoint).total(), checkpoint->total_bytes() + demand.int8);
  options.memory = Memory(static_cast<int64_t>(checkpoint->total_bytes() + demand.int8 / 2));
  const Status refused = CheckWeightsFit(options, DemandOf(options, *checkpoint));
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("--cpu-dense int8"));
  options.cpu.int8_dense = false;
  EXPECT_TRUE(CheckWeightsFit(options, DemandOf(options, *checkpoint)).ok());
}

// A copy of the bundled model, whose files are cut after loading.
class LostFiles : public ::testing::TestWithParam<WeightsMode> {};

TEST_P(LostFiles, AreAnErrorWithMmapAndDoNotMatterAfterCopying) {
  const auto directory = std::filesystem::path(::testing::TempDir()) /
                         ("fathom_lost_" + std::string(WeightsModeName(GetParam())));
  std::filesystem::remove_all(directory);
  std::filesystem::copy(kNano, directory);
  const std::vector<uint32_t> expected = Logits(*Load(Options(WeightsMode::kMmap)).model);
  const Loaded loaded = Load(Options(GetParam()), directory);
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry, 4096);
  }
  const std::vector<uint32_t> bits = Logits(*loaded.model);
  if (GetParam() == WeightsMode::kMmap) {
    EXPECT_EQ(loaded.checkpoint->CheckFiles().code(), StatusCode::kDataLoss);
  } else {
    EXPECT_TRUE(loaded.checkpoint->CheckFiles().ok());
    EXPECT_EQ(bits, expected);
  }
  std::filesystem::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(LocalModel, LostFiles,
                         ::testing::Values(WeightsMode::kMmap, WeightsMode::kCopy,
                                           WeightsMode::kHugePages),
                         [](const auto& mode) { return std::string(WeightsModeName(mode.param)); });

}  // namespace
}  // namespace fathom
