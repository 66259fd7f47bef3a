#include "backend/cuda/emulation/streams.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/cuda/emulation/schedule.h"

namespace fathom::emulation {
namespace {

struct Stream;

// What streams were asked for since one of them began to be captured. Lanes have the numbers of
// their streams.
struct Capture {
  int origin = 0;
  Lanes lanes;
  std::vector<Stream*> streams;  // empty when it has ended
  bool invalid = false;          // asked for what cannot be captured
};

struct Stream {
  int id = 0;
  std::shared_ptr<Capture> capture;
};

struct Event {
  bool recorded = false;
  std::shared_ptr<Capture> capture;  // that it was recorded in
  Point point;
};

// Of cudaGraph_t and cudaGraphExec_t alike.
using Graph = std::shared_ptr<const Capture>;

struct Device {
  std::mutex mutex;  // guards everything, and is held while works run
  Lanes lanes;       // of streams that were not destroyed
  int next_stream = 1;
  Schedule schedule;
  bool graphs_find_no_memory = false;
};

// Not destroyed: backends of static variables may still call.
Device& TheDevice() {
  static Device* const device = new Device;
  return *device;
}

// All works of a lane.
void RunLane(Schedule& schedule, int id, Lanes& lanes) {
  schedule.RunUntil(lanes.at(id).End(id), lanes);
}

// Where the stream's works are queued.
Lanes& LanesOf(Device& device, const Stream& stream) {
  return stream.capture != nullptr ? stream.capture->lanes : device.lanes;
}

void Queue(Device& device, const Stream& stream, Work work) {
  Lanes& lanes = LanesOf(device, stream);
  lanes[stream.id].queue.push_back(std::move(work));
  if (stream.capture == nullptr && device.schedule.order() == Order::kAtOnce) {
    RunLane(device.schedule, stream.id, lanes);
  }
}

// Whether the origin's last work comes after all works of all streams.
bool IsJoined(const Capture& capture) {
  Lanes lanes = capture.lanes;
  for (auto& [id, lane] : lanes) {
    for (Work& work : lane.queue) {
      if (work.run) work.run = [] {};
    }
  }
  Schedule late(Order::kLate, 0);
  RunLane(late, capture.origin, lanes);
  for (const auto& [id, lane] : lanes) {
    for (const Work& work : lane.queue) {
      if (work.run) return false;
    }
  }
  return true;
}

// All calls that wait for a stream end the capture of one that is captured.
cudaError_t Wait(Device& device, Stream& stream) {
  if (stream.capture != nullptr) {
    stream.capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  RunLane(device.schedule, stream.id, device.lanes);
  return cudaSuccess;
}

Stream* Of(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }
Event* Of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }
Graph* Of(cudaGraph_t graph) { return reinterpret_cast<Graph*>(graph); }
Graph* Of(cudaGraphExec_t exec) { return reinterpret_cast<Graph*>(exec); }

}  // namespace

void SetOrder(Order order, uint64_t seed) {
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  device.schedule = Schedule(order, seed);
}

void ResetOrder() {
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  device.schedule = Schedule();
}

void LetGraphsFindNoMemory(bool none) {
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  device.graphs_find_no_memory = none;
}

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  Device& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  Queue(device, *Of(stream), {std::move(work), {}});
  return cudaSuccess;
}

bool IsCaptured(cudaStream_t stream) {
  const std::lock_guard lock(TheDevice().mutex);
  return stream != nullptr && Of(stream)->capture != nullptr;
}

}  // namespace fathom::emulation

using fathom::emulation::Capture;
using fathom::emulation::Event;
using fathom::emulation::Graph;
using fathom::emulation::Lanes;
using fathom::emulation::Of;
using fathom::emulation::RunLane;
using fathom::emulation::Stream;
using fathom::emulation::TheDevice;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  const int id = device.next_stream++;
  device.lanes[id] = {};
  *stream = reinterpret_cast<cudaStream_t>(new Stream{id, nullptr});
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  const std::unique_ptr<Stream> destroyed(Of(stream));
  if (destroyed->capture != nullptr) std::erase(destroyed->capture->streams, destroyed.get());
  destroyed->capture = nullptr;
  static_cast<void>(Wait(device, *destroyed));
  device.lanes.erase(destroyed->id);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  return Wait(device, *Of(stream));
}
cudaError_t cudaDeviceSynchronize() {
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  for (const auto& [id, lane] : device.lanes) RunLane(device.schedule, id, device.lanes);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete Of(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  const Stream& s = *Of(stream);
  *Of(event) = {true, s.capture, LanesOf(device, s)[s.id].End(s.id)};
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (event == nullptr || stream == nullptr) return cudaErrorInvalidResourceHandle;
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  Stream& s = *Of(stream);
  const Event& e = *Of(event);
  if (!e.recorded) return cudaSuccess;  // counts as done
  if (e.capture == nullptr && s.capture != nullptr) {
    s.capture->invalid = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (e.capture != nullptr && s.capture == nullptr) {
    if (e.capture->streams.empty()) return cudaErrorCapturedEvent;
    s.capture = e.capture;
    s.capture->streams.push_back(&s);
  }
  if (s.capture != e.capture) return cudaErrorStreamCaptureMerge;
  Queue(device, s, {nullptr, e.point});
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  const Event& e = *Of(event);
  if (e.capture != nullptr) return cudaErrorCapturedEvent;
  if (e.recorded) device.schedule.RunUntil(e.point, device.lanes);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  Stream& s = *Of(stream);
  if (s.capture != nullptr) return cudaErrorIllegalState;
  s.capture = std::make_shared<Capture>();
  s.capture->origin = s.id;
  s.capture->lanes[s.id] = {};
  s.capture->streams = {&s};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  if (stream == nullptr || Of(stream)->capture == nullptr) return cudaErrorIllegalState;
  const std::shared_ptr<Capture> capture = Of(stream)->capture;
  if (capture->origin != Of(stream)->id) return cudaErrorStreamCaptureUnmatched;
  *graph = nullptr;
  for (Stream* const s : capture->streams) s->capture = nullptr;
  capture->streams.clear();
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (!IsJoined(*capture)) return cudaErrorStreamCaptureUnjoined;
  *graph = reinterpret_cast<cudaGraph_t>(new Graph(capture));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  const std::lock_guard lock(TheDevice().mutex);
  if (TheDevice().graphs_find_no_memory) return cudaErrorMemoryAllocation;
  *exec = reinterpret_cast<cudaGraphExec_t>(new Graph(*Of(graph)));
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t /*exec*/, cudaStream_t /*stream*/) {
  return cudaSuccess;
}
// One work of the stream, whose branches are done in an order of their own.
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  auto& device = TheDevice();
  const std::lock_guard lock(device.mutex);
  if (Of(stream)->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  const auto run = [&device, graph = *Of(exec)] {
    Lanes lanes = graph->lanes;
    RunLane(device.schedule, graph->origin, lanes);
  };
  Queue(device, *Of(stream), {run, {}});
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete Of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete Of(exec);
  return cudaSuccess;
}

}  // extern "C"
