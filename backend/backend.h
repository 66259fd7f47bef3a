// Backend: the fused operations that a DeepSeek-V4 forward pass is made of, on one device.
//
// The model calls these in a fixed order (model/block.cc) and never asks which backend it has.
// Each operation's contract is in its header under backend/ops/; the public methods check the
// arguments and call the backend's own DoX. Operations of one backend are called by one thread at a
// time. TensorViews, WeightViews and pages point into memory that the backend's device reads
// (memory()); spans, plans and tables of experts are the host's and may go when the operation
// returns, but for the experts of AddExperts. A backend with a device of its own may return before
// the work is done: results are there after Synchronize().
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "backend/device_memory.h"
#include "backend/numerics.h"
#include "backend/ops/compress_insert.h"
#include "backend/ops/embed_expand.h"
#include "backend/ops/hc_post.h"
#include "backend/ops/hc_pre_norm.h"
#include "backend/ops/head.h"
#include "backend/ops/indexer_topk.h"
#include "backend/ops/inverse_rope_out.h"
#include "backend/ops/linear.h"
#include "backend/ops/moe.h"
#include "backend/ops/q_norm_rope_kv_insert.h"
#include "backend/ops/rms_norm.h"
#include "backend/ops/rope_table.h"
#include "backend/ops/route.h"
#include "backend/ops/sample.h"
#include "backend/ops/sparse_attention.h"
#include "base/status.h"

namespace fathom {

// Largest sizes that a run will use; a backend lays out its scratch memory from them.
struct BackendLimits {
  int max_rows = 0;  // tokens of one step
  int max_cols = 0;  // widest input of any linear
  int max_experts = 0;
  int max_experts_per_token = 0;
  int max_expert_width = 0;
  int num_expert_layers = 0;  // of AddExperts
  // Routed experts in memory of the host (backend/pinned_memory.h), of a layer where all have as
  // many, rounded up; and what each takes there, arrays at multiples of DeviceMemory::kAlignment.
  int host_experts_per_layer = 0;
  int64_t host_expert_bytes = 0;
  int max_heads = 0;          // of attention and indexer
  int max_head_dim = 0;       // of attention and indexer
  int64_t max_positions = 0;  // longest sequence
};

class Backend {
 public:
  explicit Backend(Numerics numerics) : numerics_(numerics) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] Numerics numerics() const { return numerics_; }
  // Cache entries stored so far whose encoding could not keep the official values
  // (backend/page_codec.h). Any thread may ask.
  [[nodiscard]] int64_t num_inexact_entries() const {
    return num_inexact_entries_.load(std::memory_order_relaxed);
  }

  // Called once, before the first operation. kOutOfMemory when the scratch cannot be had.
  virtual Status Prepare(const BackendLimits& limits) = 0;

  // Memory that this backend's operations read and write.
  [[nodiscard]] virtual DeviceMemory& memory() { return host_memory_; }

  // Operations that are given this very plan may use what is copied of it here: it stays as it is
  // until the next call. Those given another one, or called without this, copy it themselves.
  virtual Status BeginStep(const StepPlan& plan) {
    static_cast<void>(plan);
    return OkStatus();
  }

  // Waits until all work is done. Errors that came to light on the device since the last call, the
  // first of them: bad values in device memory get the code that the operation names for them,
  // faults get kInternal and stay.
  virtual Status Synchronize() { return OkStatus(); }

  // Told once of every dense matrix of the layers (projections and shared experts), before the
  // first operation; a backend may keep a copy in a form of its own.
  virtual Status AddWeight(const WeightView& weight) {
    static_cast<void>(weight);
    return OkStatus();
  }
  // Told once of every layer's experts, in the order of layers, after Prepare and before the first
  // operation. The span and what it holds stay as they are until the next Prepare or the backend's
  // end, as do the matrices, so a backend may keep what it needs of them where it computes. Moe
  // takes others as well.
  virtual Status AddExperts(std::span<const ExpertWeights> routed, const ExpertWeights& shared) {
    static_cast<void>(routed);
    static_cast<void>(shared);
    return OkStatus();
  }
  // The next Moe will be of these experts, of so many rows: a backend may begin to bring nearer
  // what lies far. Changes no result; a Moe of others, or of other rows, is right as well.
  virtual Status PrefetchExperts(std::span<const ExpertWeights> routed, int64_t rows,
                                 int experts_per_token) {
    static_cast<void>(routed);
    static_cast<void>(rows);
    static_cast<void>(experts_per_token);
    return OkStatus();
  }

  // Whether it has Sample. Without it logits are sampled on the host (backend/choose_token.h).
  [[nodiscard]] virtual bool samples() const { return false; }

  Status EmbedExpand(const EmbedExpandArgs& args);
  Status HcPreNorm(const HcPreNormArgs& args);
  Status HcPost(const HcPostArgs& args);
  Status RmsNorm(const RmsNormArgs& args);
  Status Linear(const LinearArgs& args);
  Status RopeTable(const RopeTableArgs& args);
  Status QNormRopeKvInsert(const QNormRopeKvInsertArgs& args);
  Status CompressInsert(const CompressInsertArgs& args);
  Status IndexerTopk(const IndexerTopkArgs& args);
  Status SparseAttention(const SparseAttentionArgs& args);
  Status InverseRopeOut(const InverseRopeOutArgs& args);
  Status Route(const RouteArgs& args);
  Status Moe(const MoeArgs& args);
  Status Head(const HeadArgs& args);
  // kUnimplemented unless samples().
  Status Sample(const SampleArgs& args);

 protected:
  virtual Status DoEmbedExpand(const EmbedExpandArgs& args) = 0;
  virtual Status DoHcPreNorm(const HcPreNormArgs& args) = 0;
  virtual Status DoHcPost(const HcPostArgs& args) = 0;
  virtual Status DoRmsNorm(const RmsNormArgs& args) = 0;
  virtual Status DoLinear(const LinearArgs& args) = 0;
  virtual Status DoRopeTable(const RopeTableArgs& args) = 0;
  virtual Status DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) = 0;
  virtual Status DoCompressInsert(const CompressInsertArgs& args) = 0;
  virtual Status DoIndexerTopk(const IndexerTopkArgs& args) = 0;
  virtual Status DoSparseAttention(const SparseAttentionArgs& args) = 0;
  virtual Status DoInverseRopeOut(const InverseRopeOutArgs& args) = 0;
  virtual Status DoRoute(const RouteArgs& args) = 0;
  virtual Status DoMoe(const MoeArgs& args) = 0;
  virtual Status DoHead(const HeadArgs& args) = 0;
  virtual Status DoSample(const SampleArgs& args);

  // kInvalidArgument when `value` exceeds the prepared `limit`.
  static Status Fits(const char* what, int64_t value, int64_t limit);
  // kInvalidArgument for limits that no run can have.
  [[nodiscard]] Status CheckLimits(const BackendLimits& limits) const;

  // For operations that store entries; from any of the backend's threads.
  void CountInexactEntries(int64_t n) {
    // Relaxed: a count for reports orders nothing.
    num_inexact_entries_.fetch_add(n, std::memory_order_relaxed);
  }
  void CountInexactEntry() { CountInexactEntries(1); }

 private:
  Numerics numerics_;
  HostDeviceMemory host_memory_;
  std::atomic<int64_t> num_inexact_entries_{0};
};

}  // namespace fathom
