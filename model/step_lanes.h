// StepLanes: which operations of a step are the side lane's (backend/side_lane.h), and what orders
// the lanes.
//
// In a layer with ratio 4 the indexer's chain needs nothing of the main one between the layer's
// compressed queries and attention: its compressor's rows, its queries and their weights, the
// insertion of index keys and the selection of entries. In steps of few rows it is the side lane's.
// Every edge between the lanes is one of the table below; with one lane the same operations are
// called in the same order, and give the same bits. Single-threaded.
#pragma once

#include <array>
#include <string_view>

#include "backend/side_lane.h"
#include "base/status.h"

namespace fathom {

enum class LaneEvent { kAttentionInput, kIndexQueries, kAttend, kSelection };

// An event of each layer that has an indexer: what is behind its signal in one lane comes after
// what is in front of it in the other.
struct LaneEdge {
  LaneEvent event;
  Lane signals;
  Lane awaits;
  bool pieces_only;  // where attention is not in a recording with what is before and behind it
  std::string_view orders;
};

inline constexpr std::array kLaneEdges = {
    LaneEdge{LaneEvent::kAttentionInput, Lane::kMain, Lane::kSide, false,
             "x, q_lora, rotations, the plan and pages copied in front of the step are written "
             "before the indexer reads them; attention of the layer before has read entries before "
             "they are written"},
    LaneEdge{
        LaneEvent::kIndexQueries, Lane::kSide, Lane::kMain, true,
        "a recorded piece ends with both lanes: its index_q, index_weights and compressor rows "
        "are written"},
    LaneEdge{LaneEvent::kAttend, Lane::kMain, Lane::kSide, true,
             "the piece, anchors' rotations and the plan come before the indexer goes on"},
    LaneEdge{LaneEvent::kSelection, Lane::kSide, Lane::kMain, false,
             "entries are selected before attention reads them; the indexer has read x, q_lora, "
             "the plan, rotations and its pages before the main lane writes them again"}};

class StepLanes {
 public:
  // One lane with nullptr, which may change between steps.
  explicit StepLanes(SideLane* backend) : backend_(backend) {}
  void SetBackend(SideLane* backend) { backend_ = backend; }
  [[nodiscard]] bool has_side() const { return backend_ != nullptr; }

  // Of the next step. `one_lane`: its values are looked at between operations.
  void BeginStep(int rows, bool pieces, bool one_lane) {
    two_ = backend_ != nullptr && !one_lane && rows <= backend_->side_lane_rows();
    pieces_ = pieces;
  }

  // Signals the event in its lane and awaits it in the other; nothing with one lane, and with whole
  // steps where it is one of pieces. Operations are called for the main lane around this.
  Status Pass(LaneEvent event);

  // Calls `work` for the side lane, where there is one.
  template <typename Work>
  Status OnSide(const Work& work) {
    if (!two_) return work();
    FATHOM_RETURN_IF_ERROR(backend_->UseLane(Lane::kSide));
    const Status status = work();
    FATHOM_RETURN_IF_ERROR(backend_->UseLane(Lane::kMain));
    return status;
  }

 private:
  SideLane* backend_;
  bool two_ = false;
  bool pieces_ = false;
};

}  // namespace fathom
