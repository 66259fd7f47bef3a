// What is CudaBackend's own: creation, limits, staging, memory.
#include "backend/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cuda/test_support.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

// Needs no GPU.
TEST(CudaCreation, ExactNumericsAreRefusedAndTheMessageNamesTheOption) {
  const auto backend = CudaBackend::Create(Numerics::kExact);
  EXPECT_EQ(backend.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(backend.status().message(), testing::HasSubstr("--backend cpu"));
}

using CudaBackendTest = CudaTest;

TEST_F(CudaBackendTest, ADeviceThatIsNotThereIsRefused) {
  for (const int device : {-1, 1000}) {
    const auto backend = CudaBackend::Create(Numerics::kOfficial, {.device = device});
    EXPECT_EQ(backend.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(backend.status().message(), testing::HasSubstr(std::to_string(device)));
  }
}

TEST_F(CudaBackendTest, OperationsBeforePrepareAndLimitsBeyondTheKernelsAreRefused) {
  const auto backend = CudaBackend::Create(Numerics::kOfficial).value();
  float* m = Poisoned<float>(64);
  ExpectRejected(backend->RmsNorm({{m, 1, 4}, {m, 4}, 1e-6f, {m, 1, 4}}), "Prepare");
  BackendLimits limits = kLimits;
  limits.max_rows = 0;
  ExpectRejected(backend->Prepare(limits), "positive");
  limits = kLimits;
  limits.max_head_dim = 1025;
  ExpectRejected(backend->Prepare(limits), "head dim");
  limits = kLimits;
  limits.max_rows = limits.max_cols = limits.max_expert_width = INT32_MAX;
  EXPECT_EQ(backend->Prepare(limits).code(), StatusCode::kOutOfMemory);
}

TEST_F(CudaBackendTest, WorkBeyondTheLimitsIsRefusedAndNamesWhat) {
  BackendLimits small = {.max_rows = 2,
                         .max_cols = 128,
                         .max_experts = 2,
                         .max_experts_per_token = 1,
                         .max_expert_width = 128,
                         .max_heads = 1,
                         .max_head_dim = 32,
                         .max_positions = 64};
  const auto backend = CudaBackend::Create(Numerics::kOfficial).value();
  ASSERT_STATUS_OK(backend->Prepare(small));
  float* m = Poisoned<float>(1 << 14);
  const WeightView wide = {DType::kF32, m, nullptr, 2, 129};
  const WeightView fits = {DType::kF32, m, nullptr, 2, 128};
  ExpectRejected(backend->Linear({.x = {m, 1, 129}, .first = {wide, {m, 1, 2}}, .second = {}}),
                 "columns");
  ExpectRejected(backend->Linear({.x = {m, 3, 128}, .first = {fits, {m, 3, 2}}, .second = {}}),
                 "rows");
  TestPages pages({{0, 1}}, 40);
  const PageView keys = pages.Add(CacheKind::kC4IndexKeys, {EntryEncoding::kE2m1, 32, 0, 4});
  int32_t* ids = Poisoned<int32_t>(64);
  IndexerTopkArgs index = {.q = {m, 1, 2, 32},
                           .head_weights = {m, 1, 2},
                           .cos_sin = {m, 1, 4, 2},
                           .plan = &pages.plan(),
                           .keys = keys,
                           .topk = 2,
                           .entries = {ids, 1, 2},
                           .num_entries = {ids, 1}};
  ExpectRejected(backend->IndexerTopk(index), "heads");
  index.q = {m, 1, 1, 32};
  index.head_weights = {m, 1, 1};
  pages.SetStep({{100, 1}});
  ExpectRejected(backend->IndexerTopk(index), "entries");
}

TEST_F(CudaBackendTest, MemoryKeepsWhatIsCopiedInAndTellsWhenThereIsNone) {
  std::vector<std::byte> in(1000, std::byte{0x5A}), out(1000);
  const DeviceBuffer buffer = cuda().memory().Allocate(1000).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % DeviceMemory::kAlignment, 0u);
  ASSERT_STATUS_OK(cuda().memory().CopyIn(buffer.data(), in));
  ASSERT_STATUS_OK(cuda().memory().CopyOut(out, buffer.data()));
  EXPECT_EQ(out, in);
  const std::vector<std::byte> other(500, std::byte{0xA5});
  ASSERT_STATUS_OK(cuda().memory().CopyIn(buffer.data(), other));
  ASSERT_STATUS_OK(cuda().memory().CopyWithin(buffer.data() + 500, buffer.data(), 500));
  ASSERT_STATUS_OK(cuda().memory().CopyOut(out, buffer.data()));
  EXPECT_EQ(out, std::vector<std::byte>(1000, std::byte{0xA5}));
  EXPECT_FALSE(cuda().memory().host_readable());
  const MemoryState state = cuda().memory().State().value();
  EXPECT_THAT(state.name, testing::HasSubstr("GPU 0 ("));
  EXPECT_GE(state.total_bytes - state.free_bytes, 1000);
  EXPECT_EQ(cuda().memory().Allocate(int64_t{1} << 50).status().code(), StatusCode::kOutOfMemory);
  // That failure is over: the next call is fine.
  ASSERT_STATUS_OK(cuda().Synchronize());
}

// Many more operands than the pinned memory holds, while the device is still busy with work from
// before: each operation must see its own, although the host is far ahead. They are large, because
// a driver may take a small copy's bytes at the call. Emulated streams are busy until somebody
// waits.
TEST_F(CudaBackendTest, OperandsInFlightAreNotOverwritten) {
#ifdef FATHOM_CUDA_EMULATED
  constexpr int kRows = 100, kOperandBytes = 2 << 10, kBusyRows = 16, kBusyCols = 64;
#else
  constexpr int kRows = 20000, kOperandBytes = 256 << 10, kBusyRows = 2048, kBusyCols = 4096;
#endif
  constexpr int kCalls = 40;
  const auto backend =
      CudaBackend::Create(Numerics::kOfficial, {.operand_bytes = kOperandBytes}).value();
  ASSERT_STATUS_OK(backend->Prepare(kLimits));
  float* frequencies = Put(std::vector<float>{1.0f});
  float* out = Poisoned<float>(size_t{kCalls} * kRows * 2);
  float* matrix = Poisoned<float>(size_t{kBusyRows} * kBusyCols);
  float* product = Poisoned<float>(size_t{kBusyRows} * kBusyRows);
  const WeightView weight = {DType::kF32, matrix, nullptr, kBusyRows, kBusyCols};
  ASSERT_STATUS_OK(backend->Linear({.x = {matrix, kBusyRows, kBusyCols},
                                    .first = {weight, {product, kBusyRows, kBusyRows}},
                                    .second = {}}));
  for (int call = 0; call < kCalls; ++call) {
    std::vector<Position> positions(kRows, call);
    ASSERT_STATUS_OK(backend->RopeTable({.positions = positions,
                                         .frequencies = {frequencies, 1},
                                         .cos_sin = {out + call * kRows * 2, kRows, 1, 2}}));
    positions.assign(kRows, -1);
  }
  ASSERT_STATUS_OK(backend->Synchronize());
  const std::vector<float> got = Get(out, size_t{kCalls} * kRows * 2);
  for (size_t i = 0; i < got.size(); i += 2) {
    ASSERT_NEAR(got[i], std::cos(static_cast<double>(i / 2 / kRows)), 1e-6) << i;
  }
}

TEST_F(CudaBackendTest, OperandsThatNeverFitAreRefused) {
  const auto backend = CudaBackend::Create(Numerics::kOfficial, {.operand_bytes = 1024}).value();
  ASSERT_STATUS_OK(backend->Prepare(kLimits));
  const std::vector<Position> positions(200, 1);
  float* m = Poisoned<float>(1024);
  ExpectRejected(
      backend->RopeTable(
          {.positions = positions, .frequencies = {m, 1}, .cos_sin = {m + 1, 200, 1, 2}}),
      "host operands");
}

// A plan that was begun is used without another copy; one that was not is copied by the operation.
TEST_F(CudaBackendTest, BegunPlansGiveTheSameBits) {
  constexpr int kHeads = 2, kDim = 72, kRope = 8;
  TestPages pages({{6, 3}, {0, 2}}, 8);
  Random random(5);
  const PageView host = pages.Add(CacheKind::kSwaKv, {EntryEncoding::kE4m3Rope, kDim, kRope, 4});
  for (int p = 0; p < 6; ++p) pages.Write(CacheKind::kSwaKv, 0, p, random.Bf16s(kDim));
  const std::vector<float> q = random.Bf16s(5 * kHeads * kDim), kv = random.Bf16s(5 * kDim),
                           sink = random.Floats(kHeads);
  SparseAttentionArgs args = {.q = {Put(q), 5, kHeads, kDim},
                              .plan = &pages.plan(),
                              .step_kv = {Put(kv), 5, kDim},
                              .swa = PutPages(host, 16),
                              .window = 7,
                              .compressed = {},
                              .compressed_kind = CacheKind::kC4Kv,
                              .ratio = 0,
                              .entries = {},
                              .num_entries = {},
                              .sink = {Put(sink), kHeads},
                              .scale = 0.25f,
                              .out = {Poisoned<float>(q.size()), 5, kHeads, kDim}};
  ASSERT_STATUS_OK(cuda().SparseAttention(args));
  const std::vector<float> want = Get(static_cast<const float*>(args.out.data()), q.size());
  for (const float v : want) ASSERT_TRUE(std::isfinite(v));
  for (int step = 0; step < 5; ++step) {
    ASSERT_STATUS_OK(cuda().BeginStep(pages.plan()));
    for (int layer = 0; layer < 3; ++layer) {
      args.out = {Poisoned<float>(q.size()), 5, kHeads, kDim};
      ASSERT_STATUS_OK(cuda().SparseAttention(args));
      EXPECT_EQ(Get(static_cast<const float*>(args.out.data()), q.size()), want);
    }
  }
}

TEST_F(CudaBackendTest, RunsOfTheSameStepGiveTheSameBits) {
  Random random(6);
  const TestWeight w = TestWeight::Random(random, DType::kF8E4M3, 300, 1024);
  const WeightView device = Put(w);
  const float* x = Put(random.Bf16s(64 * 1024));
  std::vector<float> first;
  for (int run = 0; run < 5; ++run) {
    float* out = Poisoned<float>(64 * 300);
    ASSERT_STATUS_OK(
        cuda().Linear({.x = {x, 64, 1024}, .first = {device, {out, 64, 300}}, .second = {}}));
    const std::vector<float> got = Get(out, 64 * 300);
    if (run == 0) first = got;
    EXPECT_EQ(got, first) << run;
  }
}

}  // namespace
}  // namespace fathom
