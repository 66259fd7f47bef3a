// StepGraphs: which steps a model records (backend/records_steps.h) and does again, and how a step
// is made to look like one that was recorded.
//
// A recorded step has a size, a number of rows out of a list. Smaller steps are filled up with
// sequences of one token at position 0 that have no blocks: they store nothing and nobody sees
// them, and by the backends' invariance the others' bits are what they were. Whole steps are
// recorded for sequences up to some power of two of positions, which launches are made for.
//
// A step of a kind that was not seen before runs without a recording, so that nothing but launches
// is left to do when it is recorded with its second one. Single-threaded; allocates when it records
// only.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/records_steps.h"
#include "backend/step_plan.h"
#include "base/status.h"

namespace fathom {

// As vLLM's cudagraph_mode says it. Decode steps have one row of each sequence. Whole: the step is
// one recording; pieces: what lies between two layers' attention is one.
enum class GraphMode {
  kNone,
  kPiecewise,         // pieces, of all steps
  kFull,              // whole, all steps
  kFullDecodeOnly,    // whole, decode steps
  kFullAndPiecewise,  // whole for decode steps, pieces for others
};
std::optional<GraphMode> GraphModeOf(std::string_view name);  // "FULL_AND_PIECEWISE"
std::string_view GraphModeName(GraphMode mode);

struct GraphOptions {
  GraphMode mode = GraphMode::kFullAndPiecewise;
  std::vector<int> sizes;  // empty: DefaultGraphSizes
};

// 1, 2, 4, 8, 16, then further apart, up to `most`.
std::vector<int> DefaultGraphSizes(int most);

class StepGraphs {
 public:
  enum class Way { kDirect, kPieces, kWhole };

  // Largest step that is recorded where sizes are not given.
  static constexpr int kMostRows = 512;

  // Sizes above max_rows are left out. A step has `num_pieces` pieces; the backend must outlive
  // this.
  StepGraphs(RecordsSteps& backend, const GraphOptions& options, int max_rows,
             int64_t max_positions, int num_pieces);

  [[nodiscard]] GraphMode mode() const { return mode_; }
  [[nodiscard]] const std::vector<int>& sizes() const { return sizes_; }
  [[nodiscard]] int num_recordings() const { return num_recordings_; }
  [[nodiscard]] int64_t num_replays() const { return num_replays_; }
  [[nodiscard]] int64_t recording_bytes() const { return backend_.recording_bytes(); }

  // How the step is to be done.
  [[nodiscard]] Way WayOf(const StepPlan& plan) const;
  // The plan filled up to its size; borrows from `plan` and from this until the next call. Anchors
  // of a whole step are as many as its rows.
  StepPlan Pad(const StepPlan& plan, Way way);

  // Does `work` in one of the ways: `work()` calls the backend for the plan that Pad gave and that
  // is begun. `piece` is 0 for whole steps. A recording that finds no room on the device is the
  // last one tried: this step and all later ones are done directly then.
  template <typename Work>
  Status Do(int piece, const Work& work) {
    if (mode_ == GraphMode::kNone) return work();
    int& state = recordings_[Place(piece)];
    if (state == kNew) {
      state = kSeen;
      return work();
    }
    if (state == kSeen) {
      FATHOM_RETURN_IF_ERROR(backend_.BeginRecording());
      const Status status = work();
      Result<int> recording = backend_.EndRecording();
      FATHOM_RETURN_IF_ERROR(status);
      if (recording.status().code() == StatusCode::kOutOfMemory) {
        mode_ = GraphMode::kNone;
        return work();
      }
      FATHOM_ASSIGN_OR_RETURN(state, std::move(recording));
      ++num_recordings_;
    }
    ++num_replays_;
    return backend_.Replay(state);
  }

 private:
  static constexpr int kNew = -2;
  static constexpr int kSeen = -1;

  [[nodiscard]] size_t Place(int piece) const;

  RecordsSteps& backend_;
  GraphMode mode_;
  std::vector<int> sizes_;    // ascending
  std::vector<int> lengths_;  // ascending; the last is the longest sequence
  int num_pieces_;
  // By size and piece, then by size and length: recordings, or kNew or kSeen.
  std::vector<int> recordings_;
  int num_recordings_ = 0;
  int64_t num_replays_ = 0;
  // Of the plan that Pad gave.
  Way way_ = Way::kDirect;
  size_t size_ = 0;    // index
  size_t length_ = 0;  // index
  std::vector<TokenId> token_ids_;
  std::vector<Position> positions_;
  std::vector<SequenceRows> sequences_;
  std::array<std::vector<BlockTable>, kNumCacheClasses> tables_;
  std::vector<int> logits_rows_;
};

}  // namespace fathom
