// Synthetic checkpoints without files: the bytes that `fathom synth` writes, made wherever the
// weights lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "base/mapped_file.h"
#include "checkpoint/synth.h"
#include "engine/local_model.h"
#include "engine/sequence_runner.h"
#include "tests/device/guarded_backend.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

constexpr int kRows = 24;

std::string Text(const std::filesystem::path& path) {
  Result<MappedFile> file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << path;
  return {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()};
}

// The smallest preset without MTP blocks.
ModelConfig Tiny() {
  const std::string path = ProjectPath("models/presets/tiny.json").string();
  ModelConfig config = ParseModelConfig(Text(path), path).value();
  config.mtp_compress_ratios.clear();
  return config;
}

// Bits of the logits of a prompt.
std::vector<uint32_t> Logits(Checkpoint& checkpoint, const LocalEngineOptions& options) {
  auto local = LocalModel::Load(checkpoint, options, kRows, kRows);
  EXPECT_TRUE(local.ok()) << local.status().ToString();
  if (!local.ok()) return {};
  auto runner = SequenceRunner::Create((*local)->model(), Numerics::kOfficial, kRows);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  std::vector<TokenId> tokens;
  for (int i = 0; i < kRows; ++i)
    tokens.push_back((i * i * 31 + 7) % checkpoint.config().vocab_size);
  std::vector<float> logits(static_cast<size_t>(kRows * checkpoint.config().vocab_size));
  const Status status = (*runner)->Step(tokens, SequenceRunner::Logits::kAll, logits);
  EXPECT_TRUE(status.ok()) << status.ToString();
  std::vector<uint32_t> bits;
  for (const float x : logits) {
    EXPECT_TRUE(std::isfinite(x));
    bits.push_back(std::bit_cast<uint32_t>(x));
  }
  return bits;
}

LocalEngineOptions On(const std::function<std::unique_ptr<Backend>(Numerics)>& make) {
  LocalEngineOptions options;
  options.make_backend = [make](Numerics numerics) {
    return Result<std::unique_ptr<Backend>>(make(numerics));
  };
  return options;
}

TEST(FillRecipe, WordsAreTheBytesOfSyntheticTensors) {
  const ModelConfig config = Tiny();
  int num_recipes = 0;
  for (const ExpectedTensor& spec : ExpectedMainTensors(config, 2)) {
    const SyntheticTensor tensor(config, spec, 9);
    if (tensor.recipe() == nullptr) {
      EXPECT_EQ(spec.dtype, DType::kI64);
      continue;
    }
    std::vector<std::byte> want(spec.bytes());
    tensor.Fill(0, want);
    for (size_t begin = 0; begin < want.size(); begin += 8) {
      const uint64_t word = FillWord(*tensor.recipe(), FillQuantiles(), begin / 8);
      ASSERT_EQ(std::memcmp(&word, want.data() + begin, std::min<size_t>(8, want.size() - begin)),
                0)
          << spec.name << " at " << begin;
    }
    ++num_recipes;
  }
  EXPECT_GT(num_recipes, 50);
}

TEST(SyntheticCheckpoint, HasTheBytesOfTheFilesOfTheSameSeed) {
  const std::filesystem::path directory = std::filesystem::path(::testing::TempDir()) /
                                          ("fathom_synthetic_" + std::to_string(getpid()));
  std::filesystem::remove_all(directory);
  const std::string preset = ProjectPath("models/presets/tiny.json").string();
  SynthOptions synth;
  synth.seed = 3;
  const SynthPlan plan = PlanSyntheticCheckpoint(Text(preset), preset, synth).value();
  ThreadPool pool(2);
  ASSERT_TRUE(WriteSyntheticCheckpoint(plan, directory, synth, pool).ok());
  const Checkpoint files = Checkpoint::Open(directory).value();
  EXPECT_FALSE(files.is_synthetic());

  Checkpoint made = Checkpoint::Synthetic(files.config(), 3).value();
  EXPECT_TRUE(made.is_synthetic());
  EXPECT_EQ(made.total_bytes(), files.total_bytes());
  ASSERT_EQ(made.tensors().size(), files.tensors().size());
  uint64_t last = 0;
  made.MakeTensors(pool, [&](uint64_t done, uint64_t) { last = done; });
  EXPECT_EQ(last, made.total_bytes());
  for (const StoredTensor& want : files.tensors()) {
    const StoredTensor* const got = made.Find(want.name);
    ASSERT_NE(got, nullptr) << want.name;
    EXPECT_EQ(got->dtype, want.dtype);
    EXPECT_EQ(got->shape, want.shape);
    ASSERT_EQ(got->data.size(), want.data.size());
    EXPECT_EQ(std::memcmp(got->data.data(), want.data.data(), want.data.size()), 0) << want.name;
  }
  EXPECT_FALSE(files.SyntheticAt(files.tensors()[0].data.data()).has_value());
  std::filesystem::remove_all(directory);
}

TEST(SyntheticCheckpoint, ComputesTheSameInAnyMemoryWhoeverMakesIt) {
  Checkpoint on_host = Checkpoint::Synthetic(Tiny(), 1).value();
  LocalEngineOptions reference;
  reference.backend = "reference";
  const std::vector<uint32_t> want = Logits(on_host, reference);

  // Made on the host and copied.
  Checkpoint copied = Checkpoint::Synthetic(Tiny(), 1).value();
  EXPECT_EQ(Logits(copied, On([](Numerics n) { return std::make_unique<GuardedBackend>(n); })),
            want);
  // Made by the device, some experts in memory of the host.
  Checkpoint filled = Checkpoint::Synthetic(Tiny(), 1).value();
  OffloadingBackend* backend = nullptr;
  int64_t filled_bytes = 0, bytes_in = 0;
  LocalEngineOptions offloading = On([&](Numerics n) {
    auto made = std::make_unique<OffloadingBackend>(n, int64_t{1} << 40, int64_t{1} << 40);
    backend = made.get();
    return made;
  });
  offloading.expert_offload = {true, 3 * WeightSizesOf(Tiny()).expert_bytes};
  {
    auto local = LocalModel::Load(filled, offloading, kRows, kRows);
    ASSERT_TRUE(local.ok()) << local.status().ToString();
    filled_bytes = backend->filled_bytes();
    bytes_in = backend->memory().bytes_in();
    EXPECT_EQ((*local)->weights().plan->num_host_experts, 3);
  }
  // Little but tables of expert ids is copied.
  EXPECT_GT(filled_bytes, static_cast<int64_t>(filled.total_bytes()) / 10 * 9);
  EXPECT_LT(bytes_in, static_cast<int64_t>(filled.total_bytes()) / 10);
  EXPECT_EQ(Logits(filled, offloading), want);
  // Another seed is another model.
  Checkpoint other = Checkpoint::Synthetic(Tiny(), 2).value();
  EXPECT_NE(Logits(other, reference), want);
}

TEST(SyntheticCheckpoint, ThatDoesNotFitIntoMemoryIsRefused) {
  Checkpoint checkpoint = Checkpoint::Synthetic(Tiny(), 1).value();
  LocalEngineOptions options;
  options.backend = "reference";
  options.memory = HostMemory{100'000, 50'000};
  const Status status = LocalModel::Load(checkpoint, options, kRows, kRows).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_THAT(status.message(), testing::HasSubstr("synthetic weights"));
}

}  // namespace
}  // namespace fathom
