// Lanes: the streams of both lanes (backend/side_lane.h), the events between them, and which rows
// of the scratch memory that both need are whose. Needs the CUDA runtime.
//
// The side lane has the last rows of inputs and of packed rows, as long as it is under way: from
// the main lane's first signal until the main lane has awaited what the side lane was asked for
// last. The main lane works in rounds of the rows in front of them meanwhile, which changes no
// bits.
#pragma once

#include <cuda_runtime_api.h>

#include <array>

#include "backend/cuda/scratch.h"
#include "backend/side_lane.h"
#include "base/status.h"

namespace fathom::cuda {

// Steps of more rows are left on one lane. On an H200 a step of Flash gains 0 to 6 % by the second
// one up to here (docs/performance-h200.md); beyond, room for its inputs is what it would cost.
inline constexpr int kSideLaneRows = 256;

// Single-threaded; the device is set by the caller.
class Lanes {
 public:
  explicit Lanes(cudaStream_t main) : main_(main) {}
  // Nothing may be under way (Wait).
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  Status Create();
  // Behind a wait for both streams.
  void Prepare(const Scratch& scratch);
  // 0 before Prepare, and where scratch memory has too few rows or none that kernels can begin at.
  [[nodiscard]] int side_rows() const { return side_rows_; }

  [[nodiscard]] bool on_side() const { return lane_ == fathom::Lane::kSide; }
  // Before an operation that both lanes have. kInvalidArgument on a side lane that awaited nothing.
  Status Enter();
  // Where the lane's operations are launched, and what they have of the scratch memory.
  struct Room {
    cudaStream_t stream = nullptr;
    int64_t rows = 0;
    float* inputs = nullptr;
    uint16_t* packed = nullptr;
  };
  [[nodiscard]] Room room() const;

  // As SideLane's.
  Status Use(fathom::Lane lane);
  Status Signal(int event);
  Status Await(int event);
  // The main lane comes after all of the side lane from here on; events are forgotten.
  Status Join();
  // The same when the streams have begun or ended to be captured, which knows no earlier work.
  void Forget();
  Status Wait();

 private:
  struct Event {
    cudaEvent_t event = nullptr;
    bool pending = false;  // signalled and not awaited
    fathom::Lane by = fathom::Lane::kMain;
  };
  static Status CheckNumber(int event);
  void End();  // of the side lane's being under way
  [[nodiscard]] cudaStream_t stream() const { return on_side() ? side_ : main_; }

  const cudaStream_t main_;
  cudaStream_t side_ = nullptr;
  std::array<Event, SideLane::kNumEvents> events_;
  cudaEvent_t joined_ = nullptr;
  Scratch scratch_;
  int side_rows_ = 0;
  fathom::Lane lane_ = fathom::Lane::kMain;
  bool under_way_ = false;  // the side lane may have work that the main lane did not await
  bool side_awaited_ = false;
  int last_signal_ = -1;  // of the side lane, with nothing behind it
};

}  // namespace fathom::cuda
