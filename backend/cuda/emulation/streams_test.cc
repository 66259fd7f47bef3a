// What the emulated runtime shows that a GPU may show: missing edges between streams and within
// graphs, and host memory that is written before its copy has read it.
#include "backend/cuda/emulation/streams.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fathom::emulation {
namespace {

class EmulatedStreamsTest : public testing::Test {
 protected:
  void SetUp() override {
    SetOrder(Order::kLate);
    for (cudaStream_t* stream : {&a_, &b_}) {
      ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    }
    for (cudaEvent_t* event : {&fork_, &join_}) {
      ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming), cudaSuccess);
    }
  }
  void TearDown() override {
    for (cudaStream_t stream : {a_, b_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    for (cudaEvent_t event : {fork_, join_}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    ResetOrder();
  }

  // Adds to done_ when it runs.
  void Call(cudaStream_t stream, char name) {
    EXPECT_EQ(Enqueue(stream, [this, name] { done_ += name; }), cudaSuccess);
  }
  static void Edge(cudaStream_t from, cudaEvent_t event, cudaStream_t to) {
    EXPECT_EQ(cudaEventRecord(event, from), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(to, event, 0), cudaSuccess);
  }
  // What was done when `stream` was waited for, and after the other one was.
  std::string Wait(cudaStream_t stream) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    std::string done = done_ + "|";
    const size_t before = done_.size();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    done += done_.substr(before);
    done_.clear();
    return done;
  }
  void BeginCapture() {
    EXPECT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  cudaGraphExec_t EndCapture() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  std::string done_;
};

TEST_F(EmulatedStreamsTest, NothingRunsBeforeAWaitAndThenWhatIsWaitedFor) {
  Call(a_, '1');
  Call(b_, '2');
  Call(a_, '3');
  EXPECT_EQ(done_, "");
  EXPECT_EQ(Wait(a_), "13|2");
  SetOrder(Order::kAtOnce);
  Call(b_, '1');
  Call(a_, '2');
  EXPECT_EQ(done_, "12");
}

TEST_F(EmulatedStreamsTest, AnEventOrdersTwoStreamsAndWithoutItSomeOrderIsWrong) {
  // b is to read what a wrote, and a is to write again after that.
  const auto calls = [&](bool edges) {
    Call(a_, 'w');
    if (edges) Edge(a_, fork_, b_);
    Call(b_, 'r');
    if (edges) Edge(b_, join_, a_);
    Call(a_, 'W');
    return Wait(a_);
  };
  SetOrder(Order::kLate);
  EXPECT_EQ(calls(false), "wW|r");
  EXPECT_EQ(calls(true), "wrW|");
  SetOrder(Order::kOthersFirst);
  EXPECT_EQ(calls(false), "rwW|");
  EXPECT_EQ(calls(true), "wrW|");
  bool right = false, wrong = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SetOrder(Order::kShuffled, seed);
    (calls(false).starts_with("wr") ? right : wrong) = true;
    EXPECT_EQ(calls(true), "wrW|");
  }
  EXPECT_TRUE(right && wrong);
}

TEST_F(EmulatedStreamsTest, AnEventIsWhereItWasRecordedLast) {
  Call(a_, '1');
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaSuccess);  // recorded nowhere
  EXPECT_EQ(done_, "");
  EXPECT_EQ(cudaEventRecord(fork_, a_), cudaSuccess);
  Call(a_, '2');
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaSuccess);
  EXPECT_EQ(done_, "1");
  EXPECT_EQ(cudaStreamWaitEvent(b_, fork_, 0), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(fork_, a_), cudaSuccess);
  Call(b_, '3');
  EXPECT_EQ(Wait(b_), "13|2");
}

TEST_F(EmulatedStreamsTest, PinnedMemoryIsReadWhenTheCopyIsDoneAndPageableAtTheCall) {
  void* device = nullptr;
  void* pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 2), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, 2, cudaHostAllocDefault), cudaSuccess);
  auto* const written = static_cast<char*>(pinned);
  char pageable = 'p';  // of the stack
  written[0] = 'h';
  auto* const bytes = static_cast<char*>(device);
  EXPECT_EQ(cudaMemcpyAsync(bytes, written, 1, cudaMemcpyHostToDevice, a_), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(bytes + 1, &pageable, 1, cudaMemcpyHostToDevice, a_), cudaSuccess);
  written[0] = 'H';
  pageable = 'P';
  EXPECT_EQ(cudaMemcpyAsync(written + 1, bytes, 1, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_NE(written[1], 'H');
  char read[2] = {};
  EXPECT_EQ(cudaMemcpyAsync(read, bytes, 2, cudaMemcpyDeviceToHost, a_), cudaSuccess);
  EXPECT_EQ(std::string(read, 2), "Hp");  // waits
  EXPECT_EQ(written[1], 'H');
  Call(b_, '1');
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(done_, "1");
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(EmulatedStreamsTest, AGraphKeepsTheEdgesAndNoMore) {
  const auto record = [&](bool edges) {
    BeginCapture();
    Call(a_, 'w');
    Edge(a_, fork_, b_);
    Call(b_, 'r');
    if (!edges) Call(a_, 'W');
    Edge(b_, join_, a_);
    if (edges) Call(a_, 'W');
    return EndCapture();
  };
  const cudaGraphExec_t right = record(true), wrong = record(false);
  EXPECT_EQ(done_, "");
  const auto replay = [&](cudaGraphExec_t graph) {
    EXPECT_EQ(cudaGraphLaunch(graph, a_), cudaSuccess);
    EXPECT_EQ(done_, "");
    return Wait(a_);
  };
  EXPECT_EQ(replay(wrong), "wWr|");
  EXPECT_EQ(replay(right), "wrW|");
  EXPECT_EQ(replay(right), "wrW|");
  SetOrder(Order::kOthersFirst);
  EXPECT_EQ(replay(wrong), "wrW|");
  // Destroyed while its launch is queued.
  EXPECT_EQ(cudaGraphLaunch(right, a_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(right), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(wrong), cudaSuccess);
  EXPECT_EQ(Wait(a_), "wrW|");
  // The other stream is free again.
  Call(b_, '1');
  EXPECT_EQ(Wait(b_), "1|");
}

TEST_F(EmulatedStreamsTest, ACaptureThatIsNotJoinedIsRefused) {
  cudaGraph_t graph = nullptr;
  BeginCapture();
  Call(a_, '1');
  Edge(a_, fork_, b_);
  EXPECT_EQ(cudaStreamEndCapture(b_, &graph), cudaErrorStreamCaptureUnmatched);
  Call(b_, '2');
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureUnjoined);
  BeginCapture();
  Edge(a_, fork_, b_);
  Call(b_, '2');
  Edge(b_, join_, a_);
  Call(b_, '3');
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureUnjoined);
  // A stream that has nothing to do, or has done all, is no work.
  BeginCapture();
  Edge(a_, fork_, b_);
  EXPECT_EQ(cudaGraphExecDestroy(EndCapture()), cudaSuccess);
  EXPECT_EQ(Wait(a_), "|");
}

TEST_F(EmulatedStreamsTest, WhatACaptureCannotHaveIsRefused) {
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorIllegalState);
  EXPECT_EQ(cudaEventRecord(join_, b_), cudaSuccess);
  BeginCapture();
  EXPECT_EQ(cudaStreamBeginCapture(a_, cudaStreamCaptureModeThreadLocal), cudaErrorIllegalState);
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureInvalidated);
  BeginCapture();
  // An event of before the capture.
  EXPECT_EQ(cudaStreamWaitEvent(a_, join_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(cudaStreamEndCapture(a_, &graph), cudaErrorStreamCaptureInvalidated);
  BeginCapture();
  EXPECT_EQ(cudaEventRecord(fork_, a_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaGraphExecDestroy(EndCapture()), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(b_, fork_, 0), cudaErrorCapturedEvent);
}

}  // namespace
}  // namespace fathom::emulation
