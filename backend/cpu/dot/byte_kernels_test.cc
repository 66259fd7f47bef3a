// The byte kernels: against sums of integers in plain loops, and equal bits on every level.
#include "backend/cpu/dot/byte_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/cpu/dot/isa.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/test_support.h"

namespace fathom {
namespace {

using cpu::ByteKernels;
using test::Random;
using test::TestWeight;

// One input as bytes, in memory of its own.
struct Bytes {
  std::vector<float> memory;
  cpu::ByteSlot slot;

  explicit Bytes(size_t n) : memory(n), slot(cpu::SlotAt(memory.data(), static_cast<int64_t>(n))) {}
};

// Column of an input's byte `i`.
size_t Column(size_t i) {
  static constexpr size_t kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  return i / 8 * 8 + kOrder[i % 8];
}

// All levels of this machine; the best one afterwards.
template <typename Body>
void ForIsas(const Body& body) {
  for (cpu::Isa isa : cpu::SupportedIsas()) {
    SCOPED_TRACE(cpu::IsaName(isa));
    ASSERT_TRUE(cpu::SetIsa(isa).ok());
    body();
  }
  cpu::ResetIsa();
}

// Rows times inputs, in blocks of `block` columns, as the kernels compute it.
std::vector<float> Multiply(const TestWeight& w, const std::vector<Bytes>& x, bool digits,
                            int64_t block) {
  const ByteKernels& kernels = cpu::ChosenByteKernels();
  const int64_t cols = w.view.cols;
  const int lanes = kernels.lanes;
  const auto n = x.size();
  std::vector<const void*> slots;
  for (const Bytes& bytes : x) slots.push_back(bytes.memory.data());
  std::vector<float> out(n * static_cast<size_t>(w.view.rows));
  for (int row = 0; row < w.view.rows; row += 2 * lanes) {
    std::vector<float> sums(n * static_cast<size_t>(2 * lanes));
    for (int64_t begin = 0; begin < cols; begin += block) {
      const int64_t count = std::min(block, cols - begin);
      std::vector<uint8_t> codes[2];
      std::vector<float> scales[2];
      for (int p = 0; p < 2; ++p) {
        codes[p].resize(static_cast<size_t>(count * lanes));
        scales[p].resize(static_cast<size_t>(count / cpu::kFp4Group * lanes));
        const int first = std::min(row + p * lanes, w.view.rows - 1);
        kernels.pack_fp4(w.data.data() + first * cols / 2,
                         w.scale.data() + first * cols / cpu::kFp4Group, cols,
                         std::min(lanes, w.view.rows - first), begin, count, 0, codes[p].data(),
                         scales[p].data());
      }
      kernels.multiply_fp4(
          {{codes[0].data(), codes[1].data()}, {scales[0].data(), scales[1].data()}},
          {slots.data(), static_cast<int>(n), cols, digits}, begin / cpu::kFp4Group,
          count / cpu::kFp4Group, sums.data(), 2 * lanes);
    }
    for (size_t i = 0; i < n; ++i) {
      for (int r = row; r < std::min(row + 2 * lanes, w.view.rows); ++r) {
        out[i * static_cast<size_t>(w.view.rows) + static_cast<size_t>(r)] =
            sums[i * static_cast<size_t>(2 * lanes) + static_cast<size_t>(r - row)];
      }
    }
  }
  return out;
}

TEST(ByteRows, DigitsAreTheOfficialValues) {
  Random random(31);
  std::vector<float> x = random.Bf16s(1024, 3.0f);
  for (size_t i = 0; i < 128; ++i) x[i] *= 1e-7f;  // the floor of amax
  for (size_t i = 128; i < 256; ++i)
    x[i] = i == 130 ? 448.0f : std::ldexp(1.0f, -static_cast<int>(i % 12));
  for (size_t i = 256; i < 384; ++i) x[i] = std::ldexp(x[i], 100);
  std::vector<float> want = x;
  SimulateE4m3(want, 128);
  ForIsas([&] {
    Bytes bytes(x.size());
    cpu::SplitE4m3Row(x, bytes.slot);
    size_t with_third = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t g = i / cpu::kFp4Group;
      with_third += bytes.slot.has_third[g];
      const int high = 256 * bytes.slot.first[i] + bytes.slot.second[i];
      ASSERT_EQ(static_cast<double>(bytes.slot.scale[g]) * (high + bytes.slot.third[i] / 8.0),
                static_cast<double>(want[Column(i)]))
          << i;
      ASSERT_TRUE(bytes.slot.has_third[g] != 0 || bytes.slot.third[i] == 0);
    }
    for (size_t g = 0; g < x.size() / cpu::kFp4Group; ++g) {
      int sum = 0, rest = 0;
      for (size_t i = 32 * g; i < 32 * g + 32; ++i) {
        sum += 256 * bytes.slot.first[i] + bytes.slot.second[i];
        rest += bytes.slot.third[i];
      }
      EXPECT_EQ(bytes.slot.bias[g], -12 * sum);
      EXPECT_EQ(bytes.slot.third_bias[g], -12 * rest);
    }
    EXPECT_GT(with_third, 0u);
    EXPECT_LT(with_third, x.size());
  });
}

TEST(ByteRows, Int8KeepsEachGroupsLargestValue) {
  Random random(32);
  const std::vector<float> x = random.Bf16s(512);
  ForIsas([&] {
    for (int group : {cpu::kFp4Group, cpu::kInt8Group}) {
      Bytes bytes(x.size());
      cpu::Int8Row(x, group, bytes.slot);
      const auto size = static_cast<size_t>(group);
      for (size_t g = 0; g < x.size() / size; ++g) {
        int sum = 0, largest = 0;
        for (size_t i = g * size; i < (g + 1) * size; ++i) {
          const size_t column = group == cpu::kFp4Group ? Column(i) : i;
          ASSERT_NEAR(bytes.slot.first[i] * bytes.slot.scale[g], x[column],
                      0.5001 * bytes.slot.scale[g]);
          sum += bytes.slot.first[i];
          largest = std::max(largest, std::abs(static_cast<int>(bytes.slot.first[i])));
        }
        EXPECT_EQ(largest, 127);
        EXPECT_EQ(bytes.slot.bias[g], -(group == cpu::kFp4Group ? 12 : 128) * sum);
      }
    }
  });
}

TEST(ByteRows, GroupsThatAreNotFiniteAreNan) {
  std::vector<float> x(256, 1.0f);
  x[5] = std::numeric_limits<float>::infinity();
  ForIsas([&] {
    Bytes bytes(x.size());
    cpu::SplitE4m3Row(x, bytes.slot);
    EXPECT_TRUE(std::isnan(bytes.slot.scale[0]));
    EXPECT_FALSE(std::isnan(bytes.slot.scale[4]));
    cpu::Int8Row(x, cpu::kFp4Group, bytes.slot);
    EXPECT_TRUE(std::isnan(bytes.slot.scale[0]));
    EXPECT_FALSE(std::isnan(bytes.slot.scale[1]));
  });
}

// Zeros stay zeros, and no inverse is infinite.
TEST(ByteRows, Zeros) {
  const std::vector<float> x(256, 0.0f);
  ForIsas([&] {
    Bytes bytes(x.size());
    cpu::SplitE4m3Row(x, bytes.slot);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(bytes.slot.second[i], 0);
    cpu::Int8Row(x, cpu::kInt8Group, bytes.slot);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(bytes.slot.first[i], 0);
    EXPECT_TRUE(std::isfinite(bytes.slot.scale[0]));
  });
}

TEST(ByteKernels, Fp4SumsAreThoseOfIntegersOnEveryLevel) {
  Random random(33);
  for (const auto& [num_rows, cols, n] :
       {std::tuple{64, 256, 1}, {37, 384, 7}, {1, 128, 2}, {33, 2176, 13}}) {
    TestWeight w = test::MakeWeight(random, DType::kI8, num_rows, cols);
    if (num_rows == 37) {
      w.scale[3] = 0;
      w.scale[4] = 1;
      w.scale[5] = 254;
      w.view.scale = w.scale.data();
    }
    for (bool digits : {true, false}) {
      std::vector<Bytes> x;
      for (int i = 0; i < n; ++i) {
        std::vector<float> values = random.Bf16s(cols);
        for (int c = 0; c < cols; c += 7) values[static_cast<size_t>(c)] *= 1e-3f;
        x.emplace_back(values.size());
        if (digits) {
          cpu::SplitE4m3Row(values, x.back().slot);
        } else {
          cpu::Int8Row(values, cpu::kFp4Group, x.back().slot);
        }
      }
      // The definition: exact sums of each group, then fp32 in order.
      std::vector<float> want;
      for (const Bytes& input : x) {
        for (int r = 0; r < num_rows; ++r) {
          float sum = 0.0f;
          for (int g = 0; g < cols / cpu::kFp4Group; ++g) {
            int high = 0, rest = 0;
            for (int i = 32 * g; i < 32 * g + 32; ++i) {
              const auto at = static_cast<size_t>(i);
              const auto c = static_cast<int>(Column(at));
              const uint8_t byte = w.data[static_cast<size_t>((r * cols + c) / 2)];
              const auto code = static_cast<uint8_t>(c % 2 == 0 ? byte & 15 : byte >> 4);
              const int twice = static_cast<int>(2.0f * E2m1ToFloat(code));
              high += twice * (digits ? 256 * input.slot.first[at] + input.slot.second[at]
                                      : input.slot.first[at]);
              if (digits) rest += twice * input.slot.third[at];
            }
            const float half =
                0.5f * Ue8m0ToFloat(w.scale[static_cast<size_t>(r * (cols / 32) + g)]);
            const float scale = input.slot.scale[static_cast<size_t>(g)];
            sum = std::fma(static_cast<float>(high) * half, scale, sum);
            if (digits && input.slot.has_third[static_cast<size_t>(g)] != 0) {
              sum = std::fma(static_cast<float>(rest) * half, scale * 0.125f, sum);
            }
          }
          want.push_back(sum);
        }
      }
      ForIsas([&] {
        for (int64_t block : {128, 256, 4096}) EXPECT_EQ(Multiply(w, x, digits, block), want);
        const ByteKernels& kernels = cpu::ChosenByteKernels();
        if (kernels.multiply_fp4_rows == nullptr) return;
        for (size_t i = 0; i < x.size(); ++i) {
          // This input and those behind it.
          const int most = std::min(static_cast<int>(x.size() - i), kernels.direct_inputs);
          std::vector<const void*> slots;
          for (size_t t = i; t < i + static_cast<size_t>(most); ++t) {
            slots.push_back(x[t].memory.data());
          }
          for (int row = 0; row < num_rows; row += 16) {
            const int count = std::min(16, num_rows - row);
            constexpr int kStride = 20;
            std::vector<float> sums(static_cast<size_t>(most * kStride));
            for (int some = 1; some <= most; ++some) {
              kernels.multiply_fp4_rows(w.data.data() + row * cols / 2,
                                        w.scale.data() + row * cols / cpu::kFp4Group, count, 0,
                                        {slots.data(), some, cols, digits}, sums.data(), kStride);
              for (int t = 0; t < some; ++t) {
                for (int r = 0; r < count; ++r) {
                  ASSERT_EQ(sums[static_cast<size_t>(t * kStride + r)],
                            want[(i + static_cast<size_t>(t)) * static_cast<size_t>(num_rows) +
                                 static_cast<size_t>(row + r)]);
                }
              }
            }
          }
        }
      });
    }
  }
}

TEST(ByteKernels, Int8SumsAreThoseOfIntegersOnEveryLevel) {
  Random random(34);
  constexpr int kCols = 512, kInputs = 9;
  std::vector<Bytes> x;
  for (int i = 0; i < kInputs; ++i) {
    x.emplace_back(kCols);
    cpu::Int8Row(random.Bf16s(kCols), cpu::kInt8Group, x.back().slot);
  }
  ForIsas([&] {
    const ByteKernels& kernels = cpu::ChosenByteKernels();
    const int lanes = kernels.lanes;
    const auto rows = static_cast<size_t>(2 * lanes);
    std::vector<int> q(rows * kCols);
    for (int& v : q) v = random.Int(-127, 127);
    std::vector<uint8_t> codes[2];
    std::vector<float> scales[2];
    for (size_t p = 0; p < 2; ++p) {
      codes[p].resize(rows / 2 * kCols);
      scales[p].resize(rows / 2 * (kCols / cpu::kInt8Group));
      for (float& s : scales[p]) s = random.Normal();
      for (size_t l = 0; l < rows / 2; ++l) {
        for (size_t c = 0; c < kCols; ++c) {
          codes[p][(c / 4 * (rows / 2) + l) * 4 + c % 4] =
              static_cast<uint8_t>(q[(p * rows / 2 + l) * kCols + c] + 128);
        }
      }
    }
    std::vector<const void*> inputs;
    for (const Bytes& bytes : x) inputs.push_back(bytes.memory.data());
    std::vector<float> sums(kInputs * rows);
    kernels.multiply_int8(
        {{codes[0].data(), codes[1].data()}, {scales[0].data(), scales[1].data()}},
        {inputs.data(), kInputs, kCols, false}, 0, kCols / cpu::kInt8Group, sums.data(), 2 * lanes);
    for (size_t i = 0; i < kInputs; ++i) {
      for (size_t r = 0; r < rows; ++r) {
        float want = 0.0f;
        for (size_t g = 0; g < kCols / cpu::kInt8Group; ++g) {
          int sum = 0;
          for (size_t c = 128 * g; c < 128 * (g + 1); ++c)
            sum += q[r * kCols + c] * x[i].slot.first[c];
          const float scale = scales[r / (rows / 2)][g * (rows / 2) + r % (rows / 2)];
          want = std::fma(static_cast<float>(sum) * scale, x[i].slot.scale[g], want);
        }
        ASSERT_EQ(sums[i * rows + r], want) << i << " " << r;
      }
    }
  });
}

TEST(Isa, NamesGoBothWaysAndUnknownOnesAreRefused) {
  ASSERT_FALSE(cpu::SupportedIsas().empty());
  EXPECT_EQ(cpu::ChosenIsa(), cpu::SupportedIsas().back());
  for (cpu::Isa isa : cpu::SupportedIsas()) {
    const Result<cpu::Isa> found = cpu::IsaFromName(cpu::IsaName(isa));
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(*found, isa);
    ASSERT_TRUE(cpu::SetIsa(isa).ok());
    EXPECT_EQ(cpu::ChosenIsa(), isa);
  }
  cpu::ResetIsa();
  EXPECT_EQ(cpu::ChosenIsa(), cpu::SupportedIsas().back());
  EXPECT_EQ(cpu::IsaFromName("avx9000").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
