// That both ways are measured, and what is refused; speeds are a GPU's matter.
#include "bench/lanes_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/side_lane.h"
#include "bench/answer_speeds.h"
#include "tests/device/guarded_backend.h"

namespace fathom::bench {
namespace {

using ::testing::HasSubstr;

// Does everything at once and counts.
class CountingLanes final : public GuardedBackend, public SideLane {
 public:
  CountingLanes() : GuardedBackend(Numerics::kOfficial) {}

  [[nodiscard]] int side_lane_rows() const override { return rows; }
  Status UseLane(Lane /*lane*/) override { return OkStatus(); }
  Status Signal(int /*event*/) override { return OkStatus(); }
  Status Await(int event) override {
    awaited += event == 0 ? 1 : 0;
    return OkStatus();
  }
  int rows = 4;
  int awaited = 0;
};

ModelBenchOptions Small() {
  ModelBenchOptions options;
  options.lane_contexts = {2};
  options.num_steps = 2;
  options.repeats = 2;
  options.engine.max_batched_tokens = 4;
  return options;
}

TEST(LanesBench, SetsTwoLanesAgainstOne) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const ModelBenchOptions options = Small();
  CountingLanes backend;
  auto model = Model::Create(*checkpoint, backend, options.engine.max_batched_tokens,
                             AnswersLength(options.lane_contexts, options));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  int indexers = 0;
  for (const LayerWeights& layer : (*model)->weights().layers) indexers += layer.ratio == 4 ? 1 : 0;
  ASSERT_GT(indexers, 0);
  Report report;
  const Status status = BenchLanes(**model, options, report);
  ASSERT_TRUE(status.ok()) << status.ToString();
  // The prompt's one token, three steps, and two times two: once with two lanes.
  EXPECT_EQ(backend.awaited, 8 * indexers);
  EXPECT_TRUE((*model)->uses_side_lane());
  ASSERT_EQ(report.tables.size(), 1U);
  const ReportTable& table = report.tables[0];
  EXPECT_EQ(table.columns[1], "serial_tokens_per_s");
  EXPECT_EQ(table.columns[7], "streams_over_serial");
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_EQ(table.rows[0].size(), table.columns.size());
  EXPECT_GT(std::get<double>(table.rows[0][4]), 0.0);
}

TEST(LanesBench, ALaneWithoutRowsIsRefused) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  CountingLanes backend;
  backend.rows = 0;
  const auto model = Model::Create(*checkpoint, backend, 4, 16);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  Report report;
  EXPECT_THAT(BenchLanes(**model, Small(), report).message(),
              HasSubstr("--max-num-batched-tokens 4 leave a second stream no rows"));
}

TEST(LanesBench, WithoutTwoLanesThereIsNothingToCompare) {
  ReferenceBackend reference(Numerics::kOfficial);
  EXPECT_THAT(CheckLanes(reference, Small()).message(),
              HasSubstr("--parts streams: the reference backend has one stream"));
  CountingLanes backend;
  EXPECT_TRUE(CheckLanes(backend, Small()).ok());
  ModelBenchOptions serial = Small();
  serial.engine.serial_streams = true;
  EXPECT_THAT(CheckLanes(backend, serial).message(), HasSubstr("--serial-streams"));
  serial.lane_contexts.clear();
  EXPECT_TRUE(CheckLanes(backend, serial).ok());
}

}  // namespace
}  // namespace fathom::bench
