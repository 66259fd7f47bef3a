// The sequences that fused operations are measured against compute their bits.
#include "backend/cuda/unfused/unfused.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

class CudaUnfused : public CudaTest {
 protected:
  void Run(const Result<std::unique_ptr<cuda::Sequence>>& sequence) {
    ASSERT_TRUE(sequence.ok()) << sequence.status().ToString();
    // Twice: a sequence may be run over and over.
    for (int i = 0; i < 2; ++i) ASSERT_STATUS_OK((*sequence)->Run());
    ASSERT_STATUS_OK(cuda().Synchronize());
  }
  // All bytes of `blocks` pages, and those before and behind them.
  std::vector<uint8_t> PageBytes(const PageView& view, int blocks) {
    return Get(reinterpret_cast<const uint8_t*>(view.base - view.block_stride),
               static_cast<size_t>(view.block_stride * (blocks + 1)));
  }
  static std::vector<float> Rotations(Random& random, int rows, int pairs) {
    std::vector<float> cos_sin;
    for (int i = 0; i < rows * pairs; ++i) AppendCosSin({random.Uniform(-3.0, 3.0)}, cos_sin);
    return cos_sin;
  }
};

struct Heads {
  int num;
  int dim;
  int pairs;
  int n;
};
// Flash, Pro, nano, and heads that groups of 128 columns end in.
constexpr Heads kHeads[] = {{64, 512, 32, 3}, {128, 512, 32, 2}, {8, 128, 32, 5}, {8, 96, 7, 4}};
// As many as have a kernel of their own; the last groups of the second are fewer than a warp takes.
constexpr Heads kManyHeads[] = {{64, 512, 32, 34}, {4, 96, 7, 2819}};

TEST_F(CudaUnfused, HeadsAreThoseOfTheFusedKernel) {
  std::vector<Heads> all(std::begin(kHeads), std::end(kHeads));
  all.insert(all.end(), std::begin(kManyHeads), std::end(kManyHeads));
  for (const Heads& s : all) {
    SCOPED_TRACE(std::to_string(s.n) + " rows of " + std::to_string(s.dim));
    Random random(static_cast<uint32_t>(s.dim));
    const auto size = static_cast<size_t>(s.n * s.num * s.dim);
    const std::vector<float> o = random.Bf16s(size, -3.0, 3.0),
                             cos_sin = Rotations(random, s.n, s.pairs);
    InverseRopeOutArgs args = {.o = {Put(o), s.n, s.num, s.dim},
                               .cos_sin = {Put(cos_sin), s.n, s.pairs, 2},
                               .wo_a = {},
                               .groups = 1,
                               .out = {},
                               .quantise_input = true};
    auto* const want = Poisoned<uint16_t>(size);
    Run(cuda::MakeFusedHeads(cuda(), args, want));
    EXPECT_EQ(Get(args.o.data(), size), o);
    auto* const got = Poisoned<uint16_t>(size);
    const auto sequence = cuda::MakeUnfusedHeads(cuda(), args, got);
    ASSERT_TRUE(sequence.ok()) << sequence.status().ToString();
    ASSERT_STATUS_OK((*sequence)->Run());  // once: it rotates in place
    ASSERT_STATUS_OK(cuda().Synchronize());
    EXPECT_EQ(Get(static_cast<const uint16_t*>(got), size),
              Get(static_cast<const uint16_t*>(want), size));
  }
}

// Rows of three sequences; the first one's begin without pages. As one kernel for each step and as
// one for each operation on a tensor.
TEST_F(CudaUnfused, QueriesAndWindowEntriesAreThoseOfTheFusedOperation) {
  for (const Heads& s : kHeads) {
    const int rope = s.dim % 64 == 0 ? 64 : s.dim - 64;
    SCOPED_TRACE(s.dim);
    Random random(static_cast<uint32_t>(s.dim));
    const std::vector<TestSequence> sequences = {{5, 9}, {0, 1}, {30, 4}};
    constexpr int kBlocks = 12, kAllBlocks = 36;
    TestPages pages(sequences, kBlocks);
    const PageView view = pages.Add(CacheKind::kSwaKv, {EntryEncoding::kE4m3Rope, s.dim, rope, 4});
    pages.DropBlocksBefore(CacheKind::kSwaKv, 0, 8);
    const int n = pages.plan().num_rows();
    const auto d = static_cast<size_t>(s.dim), rows = static_cast<size_t>(n),
               h = static_cast<size_t>(s.num);
    std::vector<float> q = random.Bf16s(rows * h * d, -3.0, 3.0),
                       kv = random.Bf16s(rows * d, -3.0, 3.0), weight = random.Bf16s(d, 0.5, 2.0);
    // Last, where rows have pages: zeros; squares near the norm's eps; ones, whose first group has
    // the weights' largest value, which is at a border between scales.
    for (size_t i = 0; i < h * d; ++i) q[q.size() - h * d + i] *= 0x1p-10f;
    std::fill(q.end() - s.dim, q.end(), 0.0f);
    std::fill(kv.end() - s.dim, kv.end(), 0.0f);
    for (size_t i = 0; i < d; ++i) kv[kv.size() - 2 * d + i] *= 0x1p-12f;
    std::fill(kv.end() - 3 * s.dim, kv.end() - 2 * s.dim, 1.0f);
    for (size_t i = 0; i < 64; ++i) weight[i] = std::min(weight[i], 1.75f);
    const std::vector<float> cos_sin = Rotations(random, n, s.pairs);
    QNormRopeKvInsertArgs args = {.q = {},
                                  .kv = {Put(kv), n, s.dim},
                                  .kv_norm_weight = {Put(weight), s.dim},
                                  .cos_sin = {Put(cos_sin), n, s.pairs, 2},
                                  .norm_eps = 1e-6f,
                                  .plan = &pages.plan(),
                                  .swa = {},
                                  .step_kv = {}};
    const auto outputs = [&] {
      args.q = {Put(q), n, s.num, s.dim};
      args.swa = PutPages(view, kAllBlocks);
      args.step_kv = {Poisoned<float>(rows * d), n, s.dim};
      return args;
    };
    const QNormRopeKvInsertArgs want = outputs();
    ASSERT_STATUS_OK(cuda().QNormRopeKvInsert(want));
    ASSERT_STATUS_OK(cuda().Synchronize());
    struct Baseline {
      decltype(&cuda::MakeElementwise) make;
      int num_kernels;
    };
    for (const auto& [make, num_kernels] :
         {Baseline{&cuda::MakeUnfused, 7}, Baseline{&cuda::MakeElementwise, 37}}) {
      SCOPED_TRACE(num_kernels);
      const QNormRopeKvInsertArgs got = outputs();
      const auto sequence = make(cuda(), got);
      ASSERT_TRUE(sequence.ok()) << sequence.status().ToString();
      EXPECT_EQ((*sequence)->num_kernels(), num_kernels);
      ASSERT_STATUS_OK((*sequence)->Run());  // once: queries are normed in place
      ASSERT_STATUS_OK(cuda().Synchronize());
      EXPECT_EQ(Get(got.q.data(), q.size()), Get(want.q.data(), q.size()));
      EXPECT_EQ(Get(got.step_kv.data(), kv.size()), Get(want.step_kv.data(), kv.size()));
      EXPECT_EQ(PageBytes(got.swa, kAllBlocks), PageBytes(want.swa, kAllBlocks));
    }
  }
}

struct Compressor {
  int ratio;
  bool index_side;
  int width;
  int rope;
};
constexpr Compressor kCompressors[] = {{4, false, 512, 64}, {128, false, 512, 64},
                                       {4, true, 128, 64},  {4, true, 64, 8},
                                       {4, false, 136, 8},  {128, false, 80, 16}};

// Two steps: the second one's entries end with rows of the first.
TEST_F(CudaUnfused, CompressedEntriesAreThoseOfTheFusedOperation) {
  for (const Compressor& s : kCompressors) {
    SCOPED_TRACE(s.width * 1000 + s.ratio);
    Random random(static_cast<uint32_t>(s.width + s.ratio));
    const int row = s.ratio == 4 ? 2 * s.width : s.width;
    const CacheKind state_kind =
        s.ratio == 128 ? CacheKind::kC128State
                       : (s.index_side ? CacheKind::kC4IndexState : CacheKind::kC4State);
    const CacheKind out_kind = s.ratio == 128
                                   ? CacheKind::kC128Kv
                                   : (s.index_side ? CacheKind::kC4IndexKeys : CacheKind::kC4Kv);
    const PageFormat format = {s.index_side ? EntryEncoding::kE2m1 : EntryEncoding::kE4m3Rope,
                               s.width, s.index_side ? 0 : s.rope, 4};
    // Of ratio 128 that many rows that a warp stores one.
    const int before = 4 * s.ratio + 3;
    const std::vector<TestSequence> first = {{0, before}, {0, s.ratio - 1}},
                                    second = {{before, s.ratio}, {s.ratio - 1, 1}};
    const int blocks = s.ratio == 4 ? 8 : 90;
    TestPages pages(first, blocks);
    const PageView state_view = pages.Add(state_kind, {EntryEncoding::kF32, 2 * row, 0, 8}),
                   out_view = pages.Add(out_kind, format);
    struct Pages {
      PageView state, out;
    };
    const auto put = [&] {
      return Pages{PutPages(state_view, 2 * blocks), PutPages(out_view, 2 * blocks)};
    };
    const Pages want = put(), got = put();
    const std::vector<float> ape = random.Floats(static_cast<size_t>(s.ratio * row), -2.0, 2.0),
                             weight = random.Bf16s(static_cast<size_t>(s.width), 0.5, 1.5);
    for (const std::vector<TestSequence>& step : {first, second}) {
      pages.SetStep(step);
      const int n = pages.plan().num_rows();
      int entries = 0;
      for (const SequenceRows& rows : pages.plan().sequences) {
        entries += EntriesEnding(rows, s.ratio).count;
      }
      const auto size = static_cast<size_t>(n * row);
      CompressInsertArgs args = {
          .kv_rows = {Put(random.Floats(size, -2.0, 2.0)), n, row},
          .score_rows = {Put(random.Floats(size, -2.0, 2.0)), n, row},
          .ape = {Put(ape), s.ratio, row},
          .norm_weight = {Put(weight), s.width},
          .anchor_cos_sin = {Put(Rotations(random, entries, s.rope / 2)), entries, s.rope / 2, 2},
          .norm_eps = 1e-6f,
          .ratio = s.ratio,
          .index_side = s.index_side,
          .plan = &pages.plan(),
          .state = want.state,
          .out = want.out,
          .state_kind = state_kind,
          .out_kind = out_kind};
      ASSERT_STATUS_OK(cuda().CompressInsert(args));
      args.state = got.state;
      args.out = got.out;
      Run(cuda::MakeUnfused(cuda(), args));
    }
    EXPECT_EQ(PageBytes(got.state, 2 * blocks), PageBytes(want.state, 2 * blocks));
    EXPECT_EQ(PageBytes(got.out, 2 * blocks), PageBytes(want.out, 2 * blocks));
  }
}

TEST_F(CudaUnfused, OtherFormatsAreRefused) {
  TestPages pages({{0, 1}}, 1);
  const PageView swa = pages.Add(CacheKind::kSwaKv, {EntryEncoding::kBf16Rope, 512, 64, 4});
  const std::vector<float> ones(512, 1.0f);
  const QNormRopeKvInsertArgs args = {.q = {Put(ones), 1, 1, 512},
                                      .kv = {Put(ones), 1, 512},
                                      .kv_norm_weight = {Put(ones), 512},
                                      .cos_sin = {Put(ones), 1, 32, 2},
                                      .norm_eps = 1e-6f,
                                      .plan = &pages.plan(),
                                      .swa = PutPages(swa, 1),
                                      .step_kv = {Put(ones), 1, 512}};
  EXPECT_EQ(cuda::MakeUnfused(cuda(), args).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(cuda::MakeElementwise(cuda(), args).status().code(), StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace fathom
