// Which steps are recorded and done again, and what is said of them; speeds are a GPU's matter.
#include "bench/graphs_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/answer_speeds.h"
#include "tests/device/guarded_backend.h"

namespace fathom::bench {
namespace {

using ::testing::HasSubstr;

// Does what is recorded at once and nothing when it is to be done again: enough to count.
class CountingBackend final : public GuardedBackend, public RecordsSteps {
 public:
  CountingBackend() : GuardedBackend(Numerics::kOfficial) {}

  Status BeginRecording() override { return OkStatus(); }
  Result<int> EndRecording() override { return num_recordings_++; }
  Status Replay(int recording) override {
    return recording < num_recordings_ ? OkStatus() : Internal("no such recording");
  }
  [[nodiscard]] int64_t recording_bytes() const override { return 100 * num_recordings_; }

 private:
  int num_recordings_ = 0;
};

ModelBenchOptions Small() {
  ModelBenchOptions options;
  options.graph_contexts = {2};
  options.num_steps = 2;
  options.repeats = 2;
  options.engine.max_batched_tokens = 4;
  return options;
}

TEST(GraphsBench, CountsWhatIsRecordedAndDoneAgain) {
  auto checkpoint = Checkpoint::Open(FATHOM_SOURCE_DIR "/models/fathom-nano");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  const ModelBenchOptions options = Small();
  EXPECT_EQ(AnswersLength(options.graph_contexts, options), 8);
  CountingBackend backend;
  auto model = Model::Create(*checkpoint, backend, options.engine.max_batched_tokens,
                             AnswersLength(options.graph_contexts, options));
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  Report report;
  const Status status = BenchGraphs(**model, options, report);
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(report.tables.size(), 1U);
  const ReportTable& table = report.tables[0];
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_EQ(table.rows[0].size(), table.columns.size());
  EXPECT_EQ(std::get<int64_t>(table.rows[0][0]), 2);
  EXPECT_GT(std::get<double>(table.rows[0][1]), 0.0);
  // The prompt's one token is the step that is seen; then three and two times two are recorded.
  const std::vector<NamedCell> want = {{"graph_recordings", int64_t{1}},
                                       {"graph_replays", int64_t{7}},
                                       {"graph_recording_bytes", int64_t{100}}};
  EXPECT_EQ(report.summary, want);
  EXPECT_EQ((*model)->graphs()->mode(), GraphMode::kFullAndPiecewise);
}

TEST(GraphsBench, WithoutRecordedStepsThereIsNothingToCompare) {
  ReferenceBackend reference(Numerics::kOfficial);
  EXPECT_THAT(CheckGraphs(reference, Small()).message(),
              HasSubstr("--parts graphs: the reference backend records no steps"));
  CountingBackend backend;
  EXPECT_TRUE(CheckGraphs(backend, Small()).ok());
  ModelBenchOptions eager = Small();
  eager.engine.graphs = GraphOptions{GraphMode::kNone, {}};
  EXPECT_THAT(CheckGraphs(backend, eager).message(), HasSubstr("--enforce-eager"));
  eager.graph_contexts.clear();
  EXPECT_TRUE(CheckGraphs(backend, eager).ok());
  EXPECT_EQ(AnswersLength(eager.graph_contexts, eager), 0);
}

}  // namespace
}  // namespace fathom::bench
