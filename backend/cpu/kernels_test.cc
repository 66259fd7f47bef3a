// The vector loops against their scalar meaning, on every instruction set of this machine.
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/products.h"
#include "backend/cpu/test_support.h"
#include "backend/cpu/test_targets.h"
#include "backend/reference/scalar_math.h"

namespace fathom {
namespace {

using test::Random;

class CpuKernels : public test::PerTarget {};
FATHOM_FOR_TARGETS(CpuKernels, test::AllTargets());

std::vector<uint32_t> Bits(std::span<const float> v) {
  std::vector<uint32_t> bits;
  for (float x : v) bits.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

// Equal bits; any NaN equals any other.
void ExpectSameBits(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i]))
        << "element " << i << ": " << got[i] << " instead of " << want[i];
  }
}

std::vector<float> Decode(const WeightView& w) {
  std::vector<float> out(static_cast<size_t>(w.rows) * static_cast<size_t>(w.cols), -1.0f);
  cpu::DecodeRows(w, 0, w.rows, out.data());
  return out;
}

std::vector<float> ReferenceDecode(const WeightView& w) {
  std::vector<float> out;
  std::vector<float> row(static_cast<size_t>(w.cols));
  for (int r = 0; r < w.rows; ++r) {
    reference::DecodeWeightRow(w, r, row);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

TEST_P(CpuKernels, EveryFp8CodeWithEveryScaleDecodesExactly) {
  // 256 columns hold every code, NaN included, in row 0 and its neighbours; one block row per
  // scale.
  std::vector<uint8_t> codes(256 * 128 * 256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i + i / 256);
  std::vector<uint8_t> scales(2 * 256);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(i / 2);
  const WeightView all{DType::kF8E4M3, codes.data(), scales.data(), 256 * 128, 256};
  std::vector<float> got(256), want(256);
  for (int row = 0; row < all.rows; row += 37) {
    cpu::DecodeRows(all, row, 1, got.data());
    reference::DecodeWeightRow(all, row, want);
    ExpectSameBits(got, want);
  }
  // Without NaN codes, so that the vector route is taken.
  Random random(1);
  const test::TestWeight plain = test::MakeWeight(random, DType::kF8E4M3, 300, 384);
  ExpectSameBits(Decode(plain.view), ReferenceDecode(plain.view));
}

TEST_P(CpuKernels, EveryFp4CodeWithEveryScaleDecodesExactly) {
  std::vector<uint8_t> packed(256 * 64);
  for (size_t i = 0; i < packed.size(); ++i) packed[i] = static_cast<uint8_t>(i * 7 + i / 64);
  std::vector<uint8_t> scales(256 * 4);
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<uint8_t>(i / 4 + i % 4);
  const WeightView w{DType::kI8, packed.data(), scales.data(), 256, 128};
  ExpectSameBits(Decode(w), ReferenceDecode(w));
}

TEST_P(CpuKernels, Bf16AndFp32RowsOfAnyLengthDecode) {
  Random random(2);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    for (int cols : {1, 3, 4, 15, 16, 17, 31, 64, 100}) {
      const test::TestWeight w = test::MakeWeight(random, dtype, 5, cols);
      ExpectSameBits(Decode(w.view), ReferenceDecode(w.view));
    }
  }
}

// Rows of a weight times inputs: straight from the stored rows, from panels, and from decoded rows.
void ExpectOneProduct(const WeightView& w, const std::vector<std::vector<float>>& inputs) {
  const auto cols = static_cast<size_t>(w.cols);
  const auto n = inputs.size();
  const int lanes = cpu::PanelLanes();
  std::vector<const float*> plain, permuted;
  std::vector<std::vector<float>> memory;
  for (const std::vector<float>& x : inputs) {
    plain.push_back(x.data());
    memory.emplace_back(cols + 2 * cpu::kMaxLanes);
    cpu::PermuteInput(x, memory.back().data());
    permuted.push_back(memory.back().data());
  }
  std::vector<float> scratch(static_cast<size_t>(cpu::ProductScratch(w.cols)));
  std::vector<float> panel(static_cast<size_t>(cpu::PanelSize(w.cols)));
  std::vector<float> decoded(cpu::kRowBlock * cols);
  std::vector<float> want(n * cpu::kRowBlock), got(want.size());
  for (int row = 0; row < w.rows; row += cpu::kRowBlock) {
    const int count = std::min(cpu::kRowBlock, w.rows - row);
    cpu::DecodeRows(w, row, count, decoded.data());
    cpu::DotBlock(decoded.data(), count, w.cols, plain.data(), static_cast<int>(n), want.data(),
                  cpu::kRowBlock);
    const auto check = [&](int first, int rows, const float* sums, size_t stride) {
      for (size_t i = 0; i < n; ++i) {
        ExpectSameBits({sums + i * stride, static_cast<size_t>(rows)},
                       {want.data() + i * cpu::kRowBlock + first, static_cast<size_t>(rows)});
      }
    };
    cpu::DotStored(w, row, count, plain.data(), static_cast<int>(n), scratch.data(), got.data(),
                   cpu::kRowBlock);
    check(0, count, got.data(), cpu::kRowBlock);
    for (int first = 0; first < count; first += 2 * lanes) {
      for (int half = 0; half < 2; ++half) {
        const int begin = std::min(first + half * lanes, count - 1);
        cpu::PackPanel(w, row + begin, std::min(lanes, count - begin), scratch.data(),
                       panel.data() + half * lanes);
      }
      std::vector<float> sums(n * static_cast<size_t>(2 * lanes));
      cpu::DotPanel(panel.data(), w.cols, permuted.data(), static_cast<int>(n), sums.data(),
                    2 * lanes);
      check(first, std::min(2 * lanes, count - first), sums.data(), static_cast<size_t>(2 * lanes));
    }
  }
}

TEST_P(CpuKernels, StoredRowsPanelsAndDecodedRowsAreOneProduct) {
  Random random(7);
  for (DType dtype : {DType::kF8E4M3, DType::kI8, DType::kBF16, DType::kF32}) {
    for (const auto& [rows, cols, n] : {std::tuple{48, 256, 1},
                                        {33, 640, 7},
                                        {37, 384, 5},
                                        {20, 1152, 8},
                                        {16, 1152, 13},
                                        {5, 128, 30}}) {
      const test::TestWeight w = test::MakeWeight(random, dtype, rows, cols);
      std::vector<std::vector<float>> inputs;
      for (int i = 0; i < n; ++i) inputs.push_back(random.Bf16s(cols));
      SCOPED_TRACE(std::to_string(static_cast<int>(dtype)) + " " + std::to_string(cols));
      ExpectOneProduct(w.view, inputs);
    }
  }
  // Widths that are no multiple of a vector.
  for (int cols : {1, 3, 17, 77, 200}) {
    const test::TestWeight w = test::MakeWeight(random, DType::kBF16, 19, cols);
    ExpectOneProduct(w.view, {random.Bf16s(cols), random.Bf16s(cols), random.Bf16s(cols)});
  }
}

TEST_P(CpuKernels, UnusualCodesScalesAndInputsAreOneProductToo) {
  Random random(8);
  constexpr int kCols = 256;
  for (int byte : {0, 1, 7, 8, 9, 10, 127, 238, 239, 240, 246, 247, 254}) {
    const auto scale = static_cast<uint8_t>(byte);
    test::TestWeight w = test::MakeWeight(random, DType::kF8E4M3, 160, kCols);
    for (size_t i = 0; i < w.data.size(); ++i) {
      if (i % 3 == 0) w.data[i] = static_cast<uint8_t>((i / 3 % 8) | (i % 2 << 7));  // subnormal, 0
    }
    w.data[5] = 0x7F;
    w.data[40 * kCols + 255] = 0xFF;
    w.scale.assign(w.scale.size(), scale);
    w.scale[1] = 120;
    w.view.scale = w.scale.data();
    SCOPED_TRACE(byte);
    for (float size : {1.0f, 0x1p-126f, 0x1p120f}) {
      std::vector<std::vector<float>> inputs;
      for (int i = 0; i < 6; ++i) inputs.push_back(random.Normals(kCols, size));
      inputs[1].assign(kCols, 0.0f);
      ExpectOneProduct(w.view, inputs);
    }
  }
}

TEST_P(CpuKernels, ActivationQuantiserIsTheOfficialOne) {
  Random random(3);
  const auto check = [](const std::vector<float>& x) {
    for (int group : {64, 128}) {
      std::vector<float> want = x;
      SimulateE4m3(want, group);
      std::vector<float> got(x.size(), -1.0f);
      cpu::QuantiseE4m3Groups(x, group, got.data());
      ExpectSameBits(got, want);
      got = x;
      cpu::QuantiseE4m3Groups(got, group, got.data());  // in place
      ExpectSameBits(got, want);
    }
  };
  for (float scale : {1e-30f, 1e-6f, 1e-3f, 1.0f, 300.0f, 1e20f, 1e37f}) {
    check(random.Normals(128 * 8, scale));
    check(random.Bf16s(128 * 8, scale));
  }
  // The largest magnitude on, just below and just above the places where the scale changes.
  for (int e = -20; e <= 20; ++e) {
    for (float factor : {448.0f, std::nextafter(448.0f, 0.0f), std::nextafter(448.0f, 1e9f)}) {
      std::vector<float> x = random.Normals(128, std::ldexp(100.0f, e));
      for (float& v : x) v = std::clamp(v, -std::ldexp(448.0f, e), std::ldexp(448.0f, e));
      x[77] = -std::ldexp(factor, e);
      check(x);
    }
  }
  // Halfway cases of every binade, and subnormals of the format.
  std::vector<float> halves(128 * 4);
  for (size_t i = 0; i < halves.size(); ++i) {
    halves[i] = std::ldexp(static_cast<float>(i % 64) * 0.5f, static_cast<int>(i / 32) - 12);
  }
  halves[0] = halves[128] = halves[256] = halves[384] = 448.0f;
  check(halves);
  check(std::vector<float>(128, 0.0f));
  check(std::vector<float>(128, -0.0f));
  std::vector<float> odd = random.Normals(128 * 3);
  odd[5] = std::numeric_limits<float>::quiet_NaN();
  odd[200] = std::numeric_limits<float>::infinity();
  odd[300] = -std::numeric_limits<float>::max();
  check(odd);
}

TEST_P(CpuKernels, IndexQuantiserIsTheOfficialOne) {
  Random random(8);
  const auto check = [](std::vector<float> x) {
    std::vector<float> want = x;
    SimulateE2m1(want, 32);
    cpu::QuantiseE2m1Groups(x, x.data());
    ExpectSameBits(x, want);
  };
  for (float scale : {1e-38f, 1e-30f, 1e-3f, 1.0f, 1e20f, 1e37f}) {
    check(random.Normals(32 * 8, scale));
    check(random.Bf16s(32 * 8, scale));
  }
  // Every halfway case, at every distance from the scale of the group.
  std::vector<float> halves;
  for (int e = -4; e <= 4; ++e) {
    for (int i = 0; i < 32; ++i)
      halves.push_back(std::ldexp(0.25f * static_cast<float>(i - 16), e));
    halves.back() = std::ldexp(6.0f, e);
  }
  check(halves);
  check(std::vector<float>(32, -0.0f));
  std::vector<float> odd = random.Normals(32 * 3);
  odd[5] = std::numeric_limits<float>::quiet_NaN();
  odd[40] = std::numeric_limits<float>::infinity();
  odd[80] = -std::numeric_limits<float>::max();
  check(odd);
}

TEST_P(CpuKernels, RoundBf16IsTheScalarOne) {
  Random random(4);
  for (int n : {0, 1, 7, 16, 33, 1000}) {
    std::vector<float> x = random.Normals(n, 1e3f);
    if (n > 6) {
      x[0] = std::numeric_limits<float>::infinity();
      x[1] = std::numeric_limits<float>::quiet_NaN();
      x[2] = std::bit_cast<float>(0xFF800001u);
      x[3] = std::bit_cast<float>(0x3F808000u);  // halfway, even below
      x[4] = std::bit_cast<float>(0x3F818000u);  // halfway, even above
      x[5] = std::numeric_limits<float>::max();
    }
    std::vector<float> want = x;
    for (float& v : want) v = RoundToBf16(v);
    cpu::RoundBf16(x, x.data());
    EXPECT_EQ(Bits(x), Bits(want));
  }
}

TEST_P(CpuKernels, DotsAreTheSameInAnyTileAndCloseToTheExactSum) {
  Random random(5);
  for (int cols : {1, 3, 4, 15, 16, 17, 47, 64, 128, 500}) {
    for (int rows : {1, 2, 4, 5, 8, 11, 16}) {
      constexpr int kInputs = 7;
      const std::vector<float> w = random.Normals(int64_t{rows} * cols);
      const std::vector<float> x = random.Normals(int64_t{kInputs} * cols);
      std::vector<const float*> inputs;
      for (int i = 0; i < kInputs; ++i) inputs.push_back(x.data() + int64_t{i} * cols);
      std::vector<float> all(kInputs * cpu::kRowBlock);
      cpu::DotBlock(w.data(), rows, cols, inputs.data(), kInputs, all.data(), cpu::kRowBlock);
      for (int i = 0; i < kInputs; ++i) {
        for (int r = 0; r < rows; ++r) {
          const float got = all[static_cast<size_t>(i * cpu::kRowBlock + r)];
          // One row and one input alone.
          float alone[4];
          cpu::DotBlock(w.data() + int64_t{r} * cols, 1, cols, inputs.data() + i, 1, alone, 4);
          ASSERT_EQ(got, alone[0]) << cols << " columns, row " << r << ", input " << i;
          double sum = 0.0, magnitude = 0.0;
          for (int k = 0; k < cols; ++k) {
            const double product = static_cast<double>(w[static_cast<size_t>(r * cols + k)]) *
                                   static_cast<double>(x[static_cast<size_t>(i * cols + k)]);
            sum += product;
            magnitude += std::fabs(product);
          }
          // fp32 sum of `cols` terms and one rounding per product (none with FMA).
          ASSERT_NEAR(got, sum, (cols + 1) * 0x1p-24 * magnitude);
        }
      }
    }
  }
}

TEST_P(CpuKernels, EntriesDecodeLikeThePageCodec) {
  Random random(6);
  const PageFormat formats[] = {
      {EntryEncoding::kF32, 96, 0, 3},         {EntryEncoding::kE4m3Rope, 512, 64, 5},
      {EntryEncoding::kE4m3Rope, 128, 64, 4},  {EntryEncoding::kE4m3Rope, 80, 16, 2},
      {EntryEncoding::kE2m1, 128, 0, 7},       {EntryEncoding::kBf16Rope, 512, 64, 3},
      {EntryEncoding::kBf16Rope, 80, 16, 5},   {EntryEncoding::kBf16, 32, 0, 4},
      {EntryEncoding::kE4m3Scaled, 128, 0, 7}, {EntryEncoding::kE4m3Scaled, 32, 0, 3}};
  for (const PageFormat& format : formats) {
    test::TestPages pages(random, format, 1, 20);
    pages.Fill(random, 20);
    std::vector<float> got(static_cast<size_t>(format.dim)), want(got.size());
    for (int j = 0; j < 20; ++j) {
      const EntryRef entry = Locate(pages.view(), pages.tables()[0], j);
      cpu::DecodeEntry(format, entry, got.data());
      LoadEntry(format, entry, want);
      ExpectSameBits(got, want);
    }
  }
}

TEST_P(CpuKernels, RowOperationsEqualTheReferenceBitForBit) {
  Random random(7);
  for (Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    const bool round = numerics == Numerics::kOfficial;
    for (int width : {8, 64, 100, 128, 512}) {
      const std::vector<float> x = random.Bf16s(width);
      const std::vector<float> weight = random.Bf16s(width);
      std::vector<float> got(x.size()), want(x.size());
      reference::RmsNormRow(numerics, x, weight, 1e-6f, want);
      cpu::ScaleRow(x, weight.data(), cpu::InverseRms(x, 1e-6f), round, got.data());
      EXPECT_EQ(Bits(got), Bits(want)) << "norm of " << width;

      for (float sign : {1.0f, -1.0f}) {
        const std::vector<float> cos_sin = random.Normals(std::min(width, 64));
        got = want = x;
        reference::RopeRow(numerics, want, cos_sin, sign);
        cpu::RopeRow(got, cos_sin, sign, round);
        EXPECT_EQ(Bits(got), Bits(want)) << "rope of " << width;
      }
      if ((width & (width - 1)) != 0) continue;
      got = want = x;
      reference::HadamardRow(numerics, want);
      cpu::HadamardRow(got, round);
      EXPECT_EQ(Bits(got), Bits(want)) << "Hadamard of " << width;
    }
  }
}

TEST_P(CpuKernels, HadamardOfAnySizeIsTheReferencesBits) {
  Random random(12);
  for (int n = 1; n <= cpu::kMaxHadamard; n *= 2) {
    for (Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
      std::vector<float> x = random.Bf16s(n);
      // So wide a range that sums round in double too: the order of the steps shows.
      for (float& v : x) v = std::ldexp(v, random.Int(-60, 60));
      std::vector<float> want = x;
      reference::HadamardRow(numerics, want);
      cpu::HadamardRow(x, numerics == Numerics::kOfficial);
      ExpectSameBits(x, want);
    }
  }
  std::vector<float> x = random.Bf16s(128);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[77] = std::numeric_limits<float>::infinity();
  cpu::HadamardRow(x, /*round=*/true);
  for (float v : x) EXPECT_EQ(std::bit_cast<uint32_t>(v), 0x7FC00000u);
}

TEST_P(CpuKernels, SinkhornOfFourIsThePlainLoopsBits) {
  Random random(13);
  for (int num : {1, 3, 4, 9}) {
    for (int iterations : {1, 2, 20}) {
      std::vector<float> got = random.Normals(int64_t{16} * num);
      for (float& v : got) v = std::exp(3.0f * v);
      std::vector<float> want = got;
      std::vector<float*> matrices;
      for (int m = 0; m < num; ++m) matrices.push_back(got.data() + 16 * m);
      cpu::Sinkhorn4(matrices.data(), num, iterations, 1e-6f);
      // Elements `stride` apart, from `begin` on, by their sum.
      const auto divide = [&](float* begin, int stride) {
        float sum = 0.0f;
        for (int i = 0; i < 4; ++i) sum += begin[i * stride];
        for (int i = 0; i < 4; ++i) begin[i * stride] /= sum + 1e-6f;
      };
      for (int m = 0; m < num; ++m) {
        float* matrix = want.data() + 16 * m;
        for (int i = 0; i < iterations; ++i) {
          for (int j = 0; j < 4 && i > 0; ++j) divide(matrix + 4 * j, 1);
          for (int k = 0; k < 4; ++k) divide(matrix + k, 4);
        }
      }
      EXPECT_EQ(Bits(got), Bits(want));
    }
  }
}

TEST_P(CpuKernels, CopiesOfAnyNumberAndWidthMixLikeThePlainLoop) {
  Random random(14);
  for (int hc = 1; hc <= 8; ++hc) {
    for (int width : {1, 7, 8, 9, 33, 64}) {
      for (bool round : {true, false}) {
        std::vector<float> got = random.Bf16s(int64_t{hc} * width);
        const std::vector<float> before = got, out = random.Bf16s(width), post = random.Normals(hc);
        const std::vector<float> comb = random.Normals(int64_t{hc} * hc);
        std::vector<float> want(got.size());
        for (int k = 0; k < hc; ++k) {
          for (int i = 0; i < width; ++i) {
            double mixed = 0.0;
            for (int j = 0; j < hc; ++j) {
              mixed += static_cast<double>(comb[static_cast<size_t>(j * hc + k)]) *
                       static_cast<double>(before[static_cast<size_t>(j * width + i)]);
            }
            const float added = post[static_cast<size_t>(k)] * out[static_cast<size_t>(i)];
            const auto sum = static_cast<float>(static_cast<double>(added) + mixed);
            want[static_cast<size_t>(k * width + i)] = round ? RoundToBf16(sum) : sum;
          }
        }
        cpu::HcPostRow(got.data(), hc, out, post.data(), comb.data(), round);
        EXPECT_EQ(Bits(got), Bits(want)) << hc << " copies of " << width;
      }
    }
  }
}

// Both are exact to a rounding of a double that lands on the other side of one to fp32: once in
// 2^27 values.
TEST_P(CpuKernels, SqrtSoftplusIsThatOfTheReference) {
  Random random(15);
  for (int n : {1, 7, 8, 16, 33, 256}) {
    for (float scale : {1e-6f, 1.0f, 30.0f, 1000.0f}) {
      std::vector<float> got = random.Normals(n, scale), want = got;
      for (float& v : want) {
        const double x = v;
        v = std::sqrt(static_cast<float>(std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)))));
      }
      cpu::SqrtSoftplus(got);
      EXPECT_EQ(Bits(got), Bits(want)) << n << " of size " << scale;
    }
  }
}

TEST_P(CpuKernels, PoolingIsThatOfTheReference) {
  Random random(16);
  for (int num : {1, 4, 8, 128}) {
    for (int width : {1, 15, 64, 100, 128}) {
      std::vector<float> k = random.Normals(int64_t{num} * width);
      std::vector<float> score = random.Normals(int64_t{num} * width, 5.0f);
      const std::vector<float> ape = random.Normals(width);
      // K rows stand at an odd byte; every other score row has its bias already.
      std::vector<std::byte> stored(k.size() * sizeof(float) + 1);
      std::memcpy(stored.data() + 1, k.data(), k.size() * sizeof(float));
      std::vector<cpu::PoolItem> items;
      for (int n = 0; n < num; ++n) {
        const auto at = static_cast<size_t>(n * width);
        items.push_back({stored.data() + 1 + at * sizeof(float),
                         reinterpret_cast<const std::byte*>(score.data() + at),
                         n % 2 == 0 ? ape.data() : nullptr});
      }
      std::vector<float> got(static_cast<size_t>(width), -7.0f), want;
      cpu::PoolItems(items, got);
      for (int c = 0; c < width; ++c) {
        std::vector<float> p;
        float max = -std::numeric_limits<float>::infinity(), den = 0.0f, sum = 0.0f;
        for (int n = 0; n < num; ++n) {
          const float s = score[static_cast<size_t>(n * width + c)];
          p.push_back(n % 2 == 0 ? s + ape[static_cast<size_t>(c)] : s);
          max = std::max(max, p.back());
        }
        for (float& v : p) {
          v = static_cast<float>(std::exp(static_cast<double>(v - max)));
          den += v;
        }
        for (int n = 0; n < num; ++n) {
          sum += k[static_cast<size_t>(n * width + c)] * (p[static_cast<size_t>(n)] / den);
        }
        want.push_back(sum);
      }
      EXPECT_EQ(Bits(got), Bits(want)) << num << " items of " << width;
    }
  }
}

// Tiles of any size, heads and channels that fill no vector, against sums in double.
TEST_P(CpuKernels, AttentionTilesAddUpToTheSoftmaxOverAllEntries) {
  Random random(9);
  constexpr int kEntries = 150;
  for (const auto& [heads, dim] : {std::pair{1, 16}, {5, 33}, {18, 64}, {4, 128}}) {
    const std::vector<float> q = random.Normals(int64_t{heads} * dim);
    const std::vector<float> kv = random.Normals(int64_t{kEntries} * dim);
    const std::vector<float> sink = random.Normals(heads);
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    std::vector<float> max(static_cast<size_t>(heads), -std::numeric_limits<float>::infinity());
    std::vector<float> den(static_cast<size_t>(heads)), out(q.size());
    const int tiles[] = {1, 64, 15, 16, 17, 2, 35};
    int at = 0;
    for (int num : tiles) {
      cpu::AttendTile(q.data(), heads, dim, kv.data() + int64_t{at} * dim, num, scale, max.data(),
                      den.data(), out.data());
      at += num;
    }
    ASSERT_EQ(at, kEntries);
    cpu::FinishAttention(heads, dim, max.data(), den.data(), sink.data(), /*round=*/false,
                         out.data());
    for (int h = 0; h < heads; ++h) {
      std::vector<double> p;
      double sum = std::exp(static_cast<double>(sink[static_cast<size_t>(h)]));
      for (int n = 0; n < kEntries; ++n) {
        double z = 0.0;
        for (int c = 0; c < dim; ++c) {
          z += static_cast<double>(q[static_cast<size_t>(h * dim + c)]) *
               static_cast<double>(kv[static_cast<size_t>(n * dim + c)]);
        }
        p.push_back(std::exp(z * static_cast<double>(scale)));
        sum += p.back();
      }
      for (int c = 0; c < dim; ++c) {
        double want = 0.0;
        for (int n = 0; n < kEntries; ++n) {
          want += p[static_cast<size_t>(n)] / sum *
                  static_cast<double>(kv[static_cast<size_t>(n * dim + c)]);
        }
        // Scores of size 5 with fp32 errors of 128 * 2^-24 * 5 each, and values below 5.
        ASSERT_NEAR(out[static_cast<size_t>(h * dim + c)], want, 2e-5)
            << heads << " heads, " << dim;
      }
    }
  }
}

TEST_P(CpuKernels, SayWhatTheyComputeWith) {
  const cpu::VectorUnit unit = cpu::ChosenVectorUnit();
  EXPECT_EQ(unit.name, cpu::IsaName(GetParam()));
  EXPECT_EQ(unit.bits, GetParam() >= cpu::Isa::kAvx512 ? 512
                       : GetParam() >= cpu::Isa::kAvx2 ? 256
                                                       : 128);
}

}  // namespace
}  // namespace fathom
