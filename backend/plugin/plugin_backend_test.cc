// What PluginBackend hands to a plug-in, and what it does with what comes back.
#include "backend/plugin/plugin_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "backend/plugin/test_table.h"

namespace fathom {
namespace {

using test::TheScript;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr BackendLimits kLimits = {.max_rows = 4,
                                   .max_cols = 256,
                                   .max_experts = 3,
                                   .max_experts_per_token = 2,
                                   .max_expert_width = 128,
                                   .max_heads = 2,
                                   .max_head_dim = 64,
                                   .max_positions = 100};

class PluginBackendTest : public testing::Test {
 protected:
  void SetUp() override { test::Reset(); }

  std::unique_ptr<PluginBackend> Make(const FathomBackendTable& table = test::RecordingTable()) {
    auto backend = PluginBackend::Create(table, Numerics::kOfficial);
    EXPECT_TRUE(backend.ok()) << backend.status().ToString();
    EXPECT_TRUE((*backend)->Prepare(kLimits).ok());
    TheScript().calls.clear();
    return std::move(*backend);
  }
  static void FailNext(const std::string& function, FathomStatus status,
                       const std::string& message = "") {
    TheScript().fails = function;
    TheScript().status = status;
    TheScript().message = message;
  }
};

void ExpectError(const Status& status, StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_THAT(status.message(), HasSubstr(text));
}

// An input of one row and a matrix of one output, of zeros.
struct OneLinear {
  explicit OneLinear(DType dtype, int cols = 128)
      : x(static_cast<size_t>(cols)), data(4 * x.size()), scale(8), y(1) {
    args.x = {x.data(), 1, cols};
    args.first.weight = {dtype, data.data(), scale.data(), 1, cols};
    args.first.out = {y.data(), 1, 1};
  }
  std::vector<float> x;
  std::vector<uint8_t> data, scale;
  std::vector<float> y;
  LinearArgs args;
};

TEST_F(PluginBackendTest, LivesFromCreateToDestroy) {
  {
    const auto backend = Make();
    EXPECT_EQ(backend->name(), "plug-in recorder");
    EXPECT_EQ(TheScript().create.struct_size, sizeof(FathomCreateArgs));
    EXPECT_EQ(TheScript().create.host_major, FATHOM_PLUGIN_MAJOR);
    EXPECT_EQ(TheScript().create.numerics, FATHOM_OFFICIAL);
    EXPECT_EQ(TheScript().limits.max_rows, 4);
    EXPECT_EQ(TheScript().limits.max_cols, 256);
    EXPECT_EQ(TheScript().limits.max_experts, 3);
    EXPECT_EQ(TheScript().limits.max_experts_per_token, 2);
    EXPECT_EQ(TheScript().limits.max_expert_width, 128);
    EXPECT_EQ(TheScript().limits.max_heads, 2);
    EXPECT_EQ(TheScript().limits.max_head_dim, 64);
    EXPECT_EQ(TheScript().limits.max_positions, 100);
  }
  EXPECT_THAT(TheScript().calls, ElementsAre("destroy"));
}

TEST_F(PluginBackendTest, CreateThatFailsSaysSo) {
  const auto error = [](const FathomBackendTable& table) {
    return PluginBackend::Create(table, Numerics::kExact).status();
  };
  FathomBackendTable table = test::RecordingTable();
  table.numerics = 1u << FATHOM_OFFICIAL;
  ExpectError(error(table), StatusCode::kUnimplemented, "plug-in recorder: has no exact numerics");
  EXPECT_TRUE(TheScript().calls.empty());
  FailNext("create", FATHOM_UNAVAILABLE, "no driver");
  ExpectError(error(test::RecordingTable()), StatusCode::kUnavailable,
              "plug-in recorder: create: no driver");
  TheScript().creates_nothing = true;
  ExpectError(error(test::RecordingTable()), StatusCode::kInternal, "without a backend");
}

TEST_F(PluginBackendTest, ErrorsKeepTheirCodesAndMessages) {
  const auto backend = Make();
  OneLinear linear(DType::kBF16);
  const auto error = [&](FathomStatus status, const std::string& message) {
    FailNext("linear", status, message);
    return backend->Linear(linear.args);
  };
  const std::pair<FathomStatus, StatusCode> codes[] = {
      {FATHOM_INVALID_ARGUMENT, StatusCode::kInvalidArgument},
      {FATHOM_OUT_OF_MEMORY, StatusCode::kOutOfMemory},
      {FATHOM_DATA_LOSS, StatusCode::kDataLoss},
      {FATHOM_UNIMPLEMENTED, StatusCode::kUnimplemented},
      {FATHOM_UNAVAILABLE, StatusCode::kUnavailable},
      {FATHOM_INTERNAL, StatusCode::kInternal}};
  for (const auto& [status, code] : codes) {
    ExpectError(error(status, "because"), code, "plug-in recorder: linear: because");
  }
  ExpectError(error(99, "because"), StatusCode::kInternal, "status 99");
  ExpectError(error(-1, ""), StatusCode::kInternal, "status -1");
  ExpectError(error(FATHOM_INTERNAL, ""), StatusCode::kInternal, "does not say why");
  ExpectError(error(FATHOM_INTERNAL, "a\n\x80\xFF b"), StatusCode::kInternal, "linear: a??? b");
  ExpectError(error(FATHOM_INTERNAL, std::string(FATHOM_MESSAGE_BYTES, 'x')), StatusCode::kInternal,
              std::string(FATHOM_MESSAGE_BYTES - 1, 'x'));
  EXPECT_TRUE(backend->Linear(linear.args).ok());
}

TEST_F(PluginBackendTest, WhatIsThrownIsAnError) {
  const auto backend = Make();
  OneLinear linear(DType::kBF16);
  FailNext("linear", FATHOM_OK);
  TheScript().throws = true;
  ExpectError(backend->Linear(linear.args), StatusCode::kInternal, "linear threw an exception");
}

TEST_F(PluginBackendTest, MemoryIsThePlugInsAndChecked) {
  {
    const auto backend = Make();
    DeviceMemory& memory = backend->memory();
    EXPECT_TRUE(memory.host_readable());
    {
      const DeviceBuffer buffer = memory.Allocate(100).value();
      const std::array<std::byte, 3> in = {std::byte{1}, std::byte{2}, std::byte{3}};
      std::array<std::byte, 3> out = {};
      ASSERT_TRUE(memory.CopyIn(buffer.data(), in).ok());
      ASSERT_TRUE(memory.CopyWithin(buffer.data() + 8, buffer.data(), 3).ok());
      ASSERT_TRUE(memory.CopyOut(out, buffer.data() + 8).ok());
      EXPECT_EQ(out, in);
      EXPECT_TRUE(memory.CopyIn(buffer.data(), {}).ok());
      EXPECT_TRUE(memory.CopyOut({}, buffer.data()).ok());
      EXPECT_TRUE(memory.CopyWithin(buffer.data(), buffer.data(), 0).ok());
    }
    EXPECT_THAT(TheScript().calls,
                ElementsAre("allocate", "copy_in", "copy_within", "copy_out", "free"));
    FailNext("allocate", FATHOM_OUT_OF_MEMORY, "all of it is lent");
    ExpectError(memory.Allocate(100).status(), StatusCode::kOutOfMemory, "allocate: all of it");
    TheScript().misaligned_by = 64;
    ExpectError(memory.Allocate(100).status(), StatusCode::kInternal, "no multiple of 256");
    TheScript().allocates_nothing = true;
    ExpectError(memory.Allocate(100).status(), StatusCode::kInternal, "without an address");
  }
  EXPECT_EQ(TheScript().calls.back(), "destroy");
}

TEST_F(PluginBackendTest, AMemoryStateThatIsNoneIsRefused) {
  const auto backend = Make();
  const MemoryState state = backend->memory().State().value();
  EXPECT_EQ(state.name, "m?" + std::string(62, 'm'));
  EXPECT_EQ(state.total_bytes, 1 << 20);
  EXPECT_EQ(state.free_bytes, 1 << 19);
  for (const auto& [total, free] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {-1, -2}, {10, 11}, {10, -1}}) {
    TheScript().total_bytes = total;
    TheScript().free_bytes = free;
    ExpectError(backend->memory().State().status(), StatusCode::kInternal, "bytes free");
  }
}

TEST_F(PluginBackendTest, OperandsArriveAsTheyAre) {
  const auto backend = Make();
  const std::pair<DType, int32_t> dtypes[] = {{DType::kF8E4M3, FATHOM_F8E4M3},
                                              {DType::kI8, FATHOM_E2M1},
                                              {DType::kBF16, FATHOM_BF16},
                                              {DType::kF32, FATHOM_F32}};
  for (const auto& [dtype, want] : dtypes) {
    OneLinear linear(dtype);
    ASSERT_TRUE(backend->Linear(linear.args).ok());
    const FathomLinearArgs& got = TheScript().linear;
    EXPECT_EQ(got.struct_size, sizeof(FathomLinearArgs));
    EXPECT_EQ(got.x.data, linear.x.data());
    EXPECT_EQ(got.x.rank, 2);
    EXPECT_THAT(got.x.shape, ElementsAre(1, 128, 1, 1));
    EXPECT_EQ(got.first.data, linear.data.data());
    EXPECT_EQ(got.first.scale, linear.scale.data());
    EXPECT_EQ(got.first.rows, 1);
    EXPECT_EQ(got.first.cols, 128);
    EXPECT_EQ(got.first.dtype, want);
    EXPECT_EQ(got.first_out.data, linear.y.data());
    EXPECT_EQ(got.second.data, nullptr);
    EXPECT_EQ(got.second_out.data, nullptr);
    EXPECT_EQ(got.round_output, 1);
    ASSERT_TRUE(backend->AddWeight(linear.args.first.weight).ok());
    EXPECT_EQ(TheScript().weight.dtype, want);
    EXPECT_EQ(TheScript().weight.data, linear.data.data());
  }
}

TEST_F(PluginBackendTest, OperationsBeyondThePreparedLimitsDoNotReachIt) {
  const auto backend = Make();
  OneLinear wide(DType::kBF16, 257);
  ExpectError(backend->Linear(wide.args), StatusCode::kInvalidArgument,
              "linear: columns: 257 exceeds the prepared limit of 256");
  std::vector<float> x(5 * 8), weight(8);
  ExpectError(backend->RmsNorm({{x.data(), 5, 8}, {weight.data(), 8}, 1e-6f, {x.data(), 5, 8}}),
              StatusCode::kInvalidArgument, "rms_norm: rows: 5 exceeds the prepared limit of 4");
  EXPECT_TRUE(TheScript().calls.empty());
}

// One row of a sequence at `position`, with window pages of one block.
struct OneRow {
  explicit OneRow(Position position, EntryEncoding encoding = EntryEncoding::kF32)
      : ids{7},
        positions{position},
        sequences{{0, 1, position}},
        blocks{3},
        tables{{blocks.data(), 1, 0}},
        memory(4 * 64 * 4),
        q(64),
        kv(64),
        weight(64),
        step_kv(64) {
    layer[static_cast<size_t>(CacheKind::kSwaKv)] = {{encoding, 64, 0, 64}, memory.data(), 256};
    plan.token_ids = ids;
    plan.positions = positions;
    plan.sequences = sequences;
    plan.tables[static_cast<size_t>(CacheClass::kSwa)] = tables;
    plan.pages = {&layer, 1};
    plan.logits_rows = logits_rows;
    args.q = {q.data(), 1, 1, 64};
    args.kv = {kv.data(), 1, 64};
    args.kv_norm_weight = {weight.data(), 64};
    args.cos_sin = {nullptr, 1, 0, 2};
    args.plan = &plan;
    args.swa = layer[static_cast<size_t>(CacheKind::kSwaKv)];
    args.step_kv = {step_kv.data(), 1, 64};
  }
  std::vector<TokenId> ids;
  std::vector<Position> positions;
  std::vector<SequenceRows> sequences;
  std::vector<int32_t> blocks;
  std::vector<BlockTable> tables;
  std::vector<int> logits_rows = {0};
  std::vector<std::byte> memory;
  LayerPages layer;
  StepPlan plan;
  std::vector<float> q, kv, weight, step_kv;
  QNormRopeKvInsertArgs args;
};

TEST_F(PluginBackendTest, AStepsPlanArrivesWhole) {
  const auto backend = Make();
  OneRow row(9);
  ASSERT_TRUE(backend->BeginStep(row.plan).ok());
  const FathomStepPlan& got = TheScript().plan;
  EXPECT_EQ(got.struct_size, sizeof(FathomStepPlan));
  ASSERT_EQ(got.num_rows, 1);
  EXPECT_EQ(got.token_ids[0], 7);
  EXPECT_EQ(got.positions[0], 9);
  ASSERT_EQ(got.num_sequences, 1);
  EXPECT_EQ(got.sequences[0].first_row, 0);
  EXPECT_EQ(got.sequences[0].num_rows, 1);
  EXPECT_EQ(got.sequences[0].start, 9);
  const FathomBlockTable* const tables = got.tables[FATHOM_CLASS_SWA];
  ASSERT_NE(tables, nullptr);
  EXPECT_EQ(tables[0].blocks, row.blocks.data());
  EXPECT_EQ(tables[0].num_blocks, 1);
  EXPECT_EQ(tables[0].first, 0);
  EXPECT_EQ(got.tables[FATHOM_CLASS_FULL], nullptr);
  ASSERT_EQ(got.num_layers, 1);
  EXPECT_EQ(got.pages[FATHOM_SWA_KV].base, row.memory.data());
  EXPECT_EQ(got.pages[FATHOM_SWA_KV].block_stride, 256);
  EXPECT_EQ(got.pages[FATHOM_SWA_KV].dim, 64);
  EXPECT_EQ(got.pages[FATHOM_SWA_KV].entries_per_page, 64);
  EXPECT_EQ(got.pages[FATHOM_C4_KV].base, nullptr);
  ASSERT_EQ(got.num_logits_rows, 1);
  EXPECT_EQ(got.logits_rows[0], 0);
}

TEST_F(PluginBackendTest, OnlyTheBegunPlanHasTheAddressOfBeginStep) {
  const auto backend = Make();
  OneRow row(9), other(11);
  ASSERT_TRUE(backend->BeginStep(row.plan).ok());
  ASSERT_TRUE(backend->QNormRopeKvInsert(row.args).ok());
  ASSERT_TRUE(backend->QNormRopeKvInsert(other.args).ok());
  EXPECT_EQ(TheScript().plan.positions[0], 11);
  ASSERT_TRUE(backend->QNormRopeKvInsert(row.args).ok());
  EXPECT_EQ(TheScript().plan.positions[0], 9);
  const std::vector<const FathomStepPlan*>& plans = TheScript().plans;
  ASSERT_EQ(plans.size(), 4u);
  EXPECT_EQ(plans[1], plans[0]);
  EXPECT_NE(plans[2], plans[0]);
  EXPECT_EQ(plans[3], plans[0]);
}

TEST_F(PluginBackendTest, StepsBeyondTheLimitsDoNotReachIt) {
  const auto backend = Make();
  OneRow row(100);
  ExpectError(backend->BeginStep(row.plan), StatusCode::kInvalidArgument, "positions: 101");
  ExpectError(backend->QNormRopeKvInsert(row.args), StatusCode::kInvalidArgument, "positions: 101");
  EXPECT_TRUE(TheScript().calls.empty());
}

TEST_F(PluginBackendTest, PagesInAFormatThatItDoesNotNameDoNotReachIt) {
  FathomBackendTable table = test::RecordingTable();
  table.encodings &= ~(1u << FATHOM_ENTRY_BF16_ROPE);
  const auto backend = Make(table);
  EXPECT_TRUE(backend->Holds(EntryEncoding::kE4m3Rope));
  EXPECT_FALSE(backend->Holds(EntryEncoding::kBf16Rope));
  OneRow row(9, EntryEncoding::kBf16Rope);
  ExpectError(backend->QNormRopeKvInsert(row.args), StatusCode::kUnimplemented, "window entries");
  EXPECT_TRUE(TheScript().calls.empty());
  OneRow taken(9, EntryEncoding::kE4m3Rope);
  EXPECT_TRUE(backend->QNormRopeKvInsert(taken.args).ok());
  EXPECT_EQ(TheScript().pages.encoding, FATHOM_ENTRY_E4M3_ROPE);
}

TEST_F(PluginBackendTest, SynchronizeTellsErrorsAndCountsInexactEntries) {
  const auto backend = Make();
  TheScript().inexact_entries = 3;
  EXPECT_EQ(backend->num_inexact_entries(), 0);
  FailNext("synchronize", FATHOM_DATA_LOSS, "tid2eid");
  ExpectError(backend->Synchronize(), StatusCode::kDataLoss, "synchronize: tid2eid");
  EXPECT_EQ(backend->num_inexact_entries(), 3);
  TheScript().inexact_entries = -5;  // counts do not go back
  EXPECT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(backend->num_inexact_entries(), 3);
  TheScript().inexact_entries = 4;
  EXPECT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(backend->num_inexact_entries(), 4);
}

TEST_F(PluginBackendTest, WhatMayBeNullIsNotCalled) {
  FathomBackendTable table = test::RecordingTable();
  table.add_weight = nullptr;
  table.begin_step = nullptr;
  table.synchronize = nullptr;
  const auto backend = Make(table);
  OneRow row(9);
  EXPECT_TRUE(backend->BeginStep(row.plan).ok());
  EXPECT_TRUE(backend->Synchronize().ok());
  EXPECT_TRUE(backend->AddWeight(OneLinear(DType::kBF16).args.first.weight).ok());
  EXPECT_TRUE(TheScript().calls.empty());
}

// Operands of route and moe over two experts, in bf16.
struct TwoExperts {
  TwoExperts() : x(8), matrix(16), bias(2), experts(2, 0), weights(2), out(8) {
    const WeightView w = {DType::kBF16, matrix.data(), nullptr, 2, 4};
    const ExpertWeights expert = {w, {DType::kBF16, matrix.data(), nullptr, 4, 2}, w};
    routed = {expert, expert};
    routed[1].w1.data = matrix.data() + 8;
    route.x = {x.data(), 2, 4};
    route.gate = w;
    route.bias = {bias.data(), 2};
    route.experts = {experts.data(), 2, 1};
    route.weights = {weights.data(), 2, 1};
    moe.x = {x.data(), 2, 4};
    moe.experts = {experts.data(), 2, 1};
    moe.weights = {weights.data(), 2, 1};
    moe.shared = expert;
    moe.out = {out.data(), 2, 4};
    moe.routed = routed;
  }
  std::vector<float> x;
  std::vector<uint16_t> matrix;
  std::vector<float> bias;
  std::vector<int32_t> experts;
  std::vector<float> weights, out;
  std::vector<ExpertWeights> routed;
  RouteArgs route;
  MoeArgs moe;
};

TEST_F(PluginBackendTest, ExpertsArriveWithTheirMatrices) {
  const auto backend = Make();
  TwoExperts t;
  ASSERT_TRUE(backend->Moe(t.moe).ok());
  ASSERT_EQ(TheScript().routed.size(), 2u);
  EXPECT_EQ(TheScript().routed[1].w1.data, t.matrix.data() + 8);
  EXPECT_EQ(TheScript().routed[1].w2.rows, 4);
  EXPECT_EQ(TheScript().routed[1].w2.cols, 2);
  EXPECT_EQ(TheScript().moe.shared.w3.rows, 2);
}

TEST_F(PluginBackendTest, IdsThatAreNoneComeFromNobody) {
  const auto backend = Make();
  TwoExperts t;
  for (const int32_t id : {-1, 2}) {
    TheScript().routed_expert = id;
    ExpectError(backend->Route(t.route), StatusCode::kInternal,
                "route: chose expert " + std::to_string(id) + " of 2");
    t.experts[1] = id;
    TheScript().calls.clear();
    ExpectError(backend->Moe(t.moe), StatusCode::kInvalidArgument, "expert id out of range");
    EXPECT_TRUE(TheScript().calls.empty());
  }
  TheScript().routed_expert = 1;
  EXPECT_TRUE(backend->Route(t.route).ok());
  EXPECT_TRUE(backend->Moe(t.moe).ok());
}

TEST_F(PluginBackendTest, NumbersOfEntriesThatAreNoneAreErrors) {
  const auto backend = Make();
  OneRow row(9);
  std::vector<float> q(32), weights(1);
  std::vector<int32_t> entries(3), num_entries(1), blocks(1);
  const std::vector<BlockTable> tables = {{blocks.data(), 1, 0}};
  row.plan.tables[static_cast<size_t>(CacheClass::kFull)] = tables;
  IndexerTopkArgs args;
  args.q = {q.data(), 1, 1, 32};
  args.head_weights = {weights.data(), 1, 1};
  args.cos_sin = {nullptr, 1, 0, 2};
  args.plan = &row.plan;
  args.keys = {{EntryEncoding::kF32, 32, 0, 64}, row.memory.data(), 0};
  args.topk = 3;
  args.entries = {entries.data(), 1, 3};
  args.num_entries = {num_entries.data(), 1};
  EXPECT_TRUE(backend->IndexerTopk(args).ok());
  for (const int32_t n : {-1, 4}) {
    TheScript().kept_entries = n;
    ExpectError(backend->IndexerTopk(args), StatusCode::kInternal, "of at most 3");
  }
}

TEST_F(PluginBackendTest, MemoryThatTheHostCannotReadIsNotRead) {
  FathomBackendTable table = test::RecordingTable();
  table.host_readable = 0;
  // Writes nothing: the addresses below are nowhere.
  table.route = [](FathomBackend*, const FathomRouteArgs*, FathomError*) -> FathomStatus {
    return FATHOM_OK;
  };
  const auto backend = Make(table);
  EXPECT_FALSE(backend->memory().host_readable());
  TwoExperts t;
  auto* const nowhere = reinterpret_cast<int32_t*>(uintptr_t{4096});
  t.route.experts = {nowhere, 2, 1};
  EXPECT_TRUE(backend->Route(t.route).ok());
  t.moe.experts = {nowhere, 2, 1};
  EXPECT_TRUE(backend->Moe(t.moe).ok());
}

}  // namespace
}  // namespace fathom
