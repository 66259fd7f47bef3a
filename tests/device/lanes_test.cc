// A model on a backend that notes what is asked of its lanes: the edges between them are those of
// the declared table, and the side lane has the indexer's operations alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/side_lane.h"
#include "engine/sequence_runner.h"
#include "model/step_lanes.h"
#include "tests/device/guarded_backend.h"
#include "tests/test_data.h"

namespace fathom {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

constexpr int kRows = 6, kSideRows = 4;
constexpr int64_t kLength = 64;

std::string NameOf(Lane lane) { return lane == Lane::kMain ? "main" : "side"; }
std::string Note(Lane lane, const char* what, int event) {
  return NameOf(lane) + what + std::to_string(event);
}

// Does everything at once, and what is recorded when it is.
class TwoLanes final : public GuardedBackend, public SideLane, public RecordsSteps {
 public:
  TwoLanes() : GuardedBackend(Numerics::kOfficial) {}

  [[nodiscard]] int side_lane_rows() const override { return kSideRows; }
  Status UseLane(Lane lane) override {
    lane_ = lane;
    return OkStatus();
  }
  Status Signal(int event) override {
    notes.push_back(Note(lane_, " signals ", event));
    return OkStatus();
  }
  Status Await(int event) override {
    notes.push_back(Note(lane_, " awaits ", event));
    return OkStatus();
  }
  Status BeginRecording() override { return OkStatus(); }
  Result<int> EndRecording() override { return Unimplemented("test: one step of a kind only"); }
  Status Replay(int /*recording*/) override { return Unimplemented("test: no second step"); }
  [[nodiscard]] int64_t recording_bytes() const override { return 0; }

  [[nodiscard]] Lane lane() const { return lane_; }
  std::vector<std::string> notes;  // of events, and "attention"
  std::vector<std::string> side_operations;
  std::vector<std::string> misplaced_operations;  // of the indexer in the main lane

 protected:
  Status DoLinear(const LinearArgs& a) override {
    NoteSide("linear");
    return GuardedBackend::DoLinear(a);
  }
  Status DoRmsNorm(const RmsNormArgs& a) override {
    NoteSide("rms_norm");
    return GuardedBackend::DoRmsNorm(a);
  }
  Status DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& a) override {
    NoteSide("q_norm_rope_kv_insert");
    return GuardedBackend::DoQNormRopeKvInsert(a);
  }
  Status DoCompressInsert(const CompressInsertArgs& a) override {
    NoteSide(a.index_side ? "compress_insert of keys" : "compress_insert");
    if (a.index_side && lane_ == Lane::kMain) misplaced_operations.emplace_back("compress_insert");
    return GuardedBackend::DoCompressInsert(a);
  }
  Status DoIndexerTopk(const IndexerTopkArgs& a) override {
    NoteSide("indexer_topk");
    if (lane_ == Lane::kMain) misplaced_operations.emplace_back("indexer_topk");
    return GuardedBackend::DoIndexerTopk(a);
  }
  Status DoSparseAttention(const SparseAttentionArgs& a) override {
    NoteSide("sparse_attention");
    if (a.ratio == 4) notes.emplace_back("attention");
    return GuardedBackend::DoSparseAttention(a);
  }
  Status DoMoe(const MoeArgs& a) override {
    NoteSide("moe");
    return GuardedBackend::DoMoe(a);
  }

 private:
  void NoteSide(const char* operation) {
    if (lane_ == Lane::kSide) side_operations.emplace_back(operation);
  }
  Lane lane_ = Lane::kMain;
};

class Observer final : public ForwardObserver {};

class StepLanesTest : public ::testing::Test {
 protected:
  StepLanesTest()
      : checkpoint_(Checkpoint::Open(ProjectPath("tests/data/tiny-a/checkpoint")).value()),
        model_(Model::Create(checkpoint_, backend_, kRows, kLength).value()) {
    for (const LayerWeights& layer : model_->weights().layers) {
      num_indexers_ += layer.ratio == 4 ? 1 : 0;
    }
  }
  // Logits of a prompt's last token.
  std::vector<float> Step(int rows, ForwardObserver* observer = nullptr) {
    auto runner = SequenceRunner::Create(*model_, Numerics::kOfficial, kLength).value();
    std::vector<TokenId> tokens;
    for (int i = 0; i < rows; ++i) tokens.push_back(i * 31 + 7);
    std::vector<float> logits(static_cast<size_t>(model_->config().vocab_size));
    backend_.notes.clear();
    backend_.side_operations.clear();
    backend_.misplaced_operations.clear();
    const Status status = runner->Step(tokens, SequenceRunner::Logits::kLast, logits, observer);
    EXPECT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(backend_.lane(), Lane::kMain);
    return logits;
  }
  // What the table says that a step asks for: each event is signalled, then awaited, once in each
  // layer with an indexer, in the table's order, all in front of attention.
  [[nodiscard]] std::vector<std::string> Declared(bool pieces) const {
    std::vector<std::string> notes;
    for (int layer = 0; layer < num_indexers_; ++layer) {
      for (const LaneEdge& edge : kLaneEdges) {
        if (edge.pieces_only && !pieces) continue;
        notes.push_back(Note(edge.signals, " signals ", static_cast<int>(edge.event)));
        notes.push_back(Note(edge.awaits, " awaits ", static_cast<int>(edge.event)));
      }
      notes.emplace_back("attention");
    }
    return notes;
  }

  TwoLanes backend_;
  Checkpoint checkpoint_;
  std::unique_ptr<Model> model_;
  int num_indexers_ = 0;
};

TEST(LaneEdges, AreBetweenLanesAndEachHasItsPlace) {
  for (size_t i = 0; i < kLaneEdges.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(kLaneEdges[i].event), i);
    EXPECT_NE(kLaneEdges[i].signals, kLaneEdges[i].awaits);
    EXPECT_FALSE(kLaneEdges[i].orders.empty());
  }
}

TEST_F(StepLanesTest, AskForTheDeclaredEdges) {
  ASSERT_EQ(num_indexers_, 2);
  ASSERT_TRUE(model_->uses_side_lane());
  Step(kSideRows);
  EXPECT_THAT(backend_.notes, ElementsAreArray(Declared(/*pieces=*/false)));
  EXPECT_THAT(backend_.misplaced_operations, IsEmpty());
  std::vector<std::string> operations;
  for (int layer = 0; layer < num_indexers_; ++layer) {
    // The compressor's rows, queries, their weights.
    operations.insert(operations.end(),
                      {"linear", "linear", "linear", "compress_insert of keys", "indexer_topk"});
  }
  EXPECT_EQ(backend_.side_operations, operations);
}

TEST_F(StepLanesTest, PiecesAreJoinedWhereTheyEnd) {
  ASSERT_TRUE(model_->RecordSteps({GraphMode::kPiecewise, {kSideRows}}).ok());
  Step(kSideRows);
  EXPECT_THAT(backend_.notes, ElementsAreArray(Declared(/*pieces=*/true)));
}

TEST_F(StepLanesTest, LongStepsObserversAndSerialStepsHaveOneLane) {
  const std::vector<float> want = Step(kSideRows);
  Observer observer;
  const auto has_one_lane = [&] {
    EXPECT_THAT(backend_.side_operations, IsEmpty());
    EXPECT_THAT(backend_.notes, testing::Each("attention"));
  };
  EXPECT_EQ(Step(kSideRows, &observer), want);
  has_one_lane();
  Step(kSideRows + 1);
  has_one_lane();
  model_->SerialiseStreams(true);
  EXPECT_EQ(Step(kSideRows), want);
  has_one_lane();
  model_->SerialiseStreams(false);
  EXPECT_EQ(Step(kSideRows), want);
  EXPECT_FALSE(backend_.side_operations.empty());
}

TEST(StepLanes, AreOneWhereABackendHasOne) {
  GuardedBackend backend(Numerics::kOfficial);
  const Checkpoint checkpoint =
      Checkpoint::Open(ProjectPath("tests/data/tiny-a/checkpoint")).value();
  const auto model = Model::Create(checkpoint, backend, kRows, kLength).value();
  EXPECT_FALSE(model->uses_side_lane());
  model->SerialiseStreams(false);
  EXPECT_FALSE(model->uses_side_lane());
}

}  // namespace
}  // namespace fathom
