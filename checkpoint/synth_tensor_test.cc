#include "checkpoint/synth_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/formats.h"
#include "checkpoint/synth_test_data.h"

namespace fathom {
namespace {

using namespace synth_test;  // NOLINT(google-build-using-namespace): these tests' own helpers

TEST(SyntheticTensor, AnyPartEqualsTheWhole) {
  const SynthPlan plan = Plan(Preset("tiny"));
  for (const SynthShard& shard : plan.shards) {
    for (const ExpectedTensor& spec : shard.tensors) {
      const SyntheticTensor tensor(plan.config, spec, 5);
      std::vector<std::byte> whole(spec.bytes());
      tensor.Fill(0, whole);
      ASSERT_LE(tensor.unit_bytes(), 2048u);
      ASSERT_EQ(kSynthPartBytes >= tensor.unit_bytes(), true);
      const uint64_t begin =
          std::min<uint64_t>(3, (whole.size() - 1) / tensor.unit_bytes()) * tensor.unit_bytes();
      std::vector<std::byte> part(whole.size() - begin);
      tensor.Fill(begin, part);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(begin)))
          << spec.name;
    }
  }
}

struct Moments {
  double rms = 0.0;
  double mean = 0.0;
  double max = 0.0;
};
Moments MomentsOf(const std::vector<double>& values) {
  Moments m;
  for (const double v : values) {
    m.rms += v * v;
    m.mean += v;
    m.max = std::max(m.max, std::fabs(v));
  }
  m.rms = std::sqrt(m.rms / static_cast<double>(values.size()));
  m.mean /= static_cast<double>(values.size());
  return m;
}

// A matrix of the checkpoint as numbers, so that codes, scales and gains are judged together.
TEST(SyntheticTensor, QuantisedMatricesHaveTheirGain) {
  TempDirectory directory;
  ASSERT_TRUE(Write(Preset("tiny"), directory.path()).ok());
  auto opened = Checkpoint::Open(directory.path());
  ASSERT_TRUE(opened.ok());
  const auto matrix = [&](const std::string& name, bool fp4) {
    const StoredTensor& w = *opened->Find(name + ".weight");
    const StoredTensor& s = *opened->Find(name + ".scale");
    std::vector<double> values;
    std::set<int> scales;
    for (size_t i = 0; i < w.data.size(); ++i) {
      const auto code = static_cast<uint8_t>(w.data[i]);
      const auto width = static_cast<size_t>(w.shape[1]);
      const size_t at =
          fp4 ? i / 16 : (i / width / 128) * static_cast<size_t>(s.shape[1]) + i % width / 128;
      const auto scale_byte = static_cast<uint8_t>(s.data[at]);
      scales.insert(scale_byte);
      const double scale = Ue8m0ToFloat(scale_byte);
      if (fp4) {
        values.push_back(E2m1ToFloat(code) * scale);
        values.push_back(E2m1ToFloat(static_cast<uint8_t>(code >> 4)) * scale);
      } else {
        values.push_back(E4m3ToFloat(code) * scale);
      }
    }
    EXPECT_GT(scales.size(), 1u) << name;
    return MomentsOf(values);
  };
  // tiny: hidden 256, q_lora 128, MoE width 128, routed_scaling_factor 1.5. The few fp8 blocks of
  // a tiny matrix have few scales, hence the wide bound; fp4 has thousands.
  const double wq_b = matrix("layers.1.attn.wq_b", false).rms * std::sqrt(128.0);
  EXPECT_GT(wq_b, 0.6);
  EXPECT_LT(wq_b, 1.7);
  const Moments w1 = matrix("layers.1.ffn.experts.0.w1", true);
  EXPECT_NEAR(w1.rms * std::sqrt(256.0), 1.6, 0.08);
  EXPECT_LT(std::fabs(w1.mean), 0.02 * w1.rms);
  EXPECT_NEAR(matrix("layers.1.ffn.experts.0.w2", true).rms * std::sqrt(128.0), 0.25 / 1.5, 0.01);
}

TEST(SyntheticTensor, NumbersAreNormalAndTablesHoldDistinctExperts) {
  const SynthPlan plan = Plan(Preset("tiny"));
  const ExpectedTensor embed = {"embed.weight", DType::kBF16, {2560, 256}};
  std::vector<uint16_t> bits(2560 * 256);
  SyntheticTensor(plan.config, embed, 1).Fill(0, std::as_writable_bytes(std::span(bits)));
  std::vector<double> values;
  for (const uint16_t b : bits) values.push_back(Bf16ToFloat(b));
  const Moments m = MomentsOf(values);
  EXPECT_NEAR(m.rms, 1.0, 0.01);  // 655,360 draws: 0.001, and the cut tail
  EXPECT_NEAR(m.mean, 0.0, 0.01);
  EXPECT_GT(m.max, 3.0);

  const ExpectedTensor table = {"layers.0.ffn.gate.tid2eid", DType::kI64, {2560, 2}};
  std::vector<int64_t> ids(2560 * 2);
  SyntheticTensor(plan.config, table, 1).Fill(0, std::as_writable_bytes(std::span(ids)));
  std::vector<int> uses(8);
  for (size_t i = 0; i < ids.size(); i += 2) {
    ASSERT_NE(ids[i], ids[i + 1]);
    for (const int64_t id : {ids[i], ids[i + 1]}) {
      ASSERT_TRUE(id >= 0 && id < 8);
      ++uses[static_cast<size_t>(id)];
    }
  }
  for (const int n : uses) EXPECT_NEAR(n, 640, 100);  // 4 standard deviations
}

}  // namespace
}  // namespace fathom
