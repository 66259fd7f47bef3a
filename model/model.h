// Model: DeepSeek-V4's forward pass as a fixed sequence of fused operations on a Backend.
//
// Reads like the architecture: one function per block, in the order in which data flows. It has no
// device code and does not know which backend it runs on. One step at a time; owned by the engine
// thread.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/communicator.h"
#include "backend/runs_behind.h"
#include "backend/step_plan.h"
#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "model/activations.h"
#include "model/expert_prefetch.h"
#include "model/expert_use.h"
#include "model/step_graphs.h"
#include "model/step_lanes.h"
#include "model/weights.h"

namespace fathom {

// Values that an observer may see, by the call that shows them.
enum class Observed { kHidden, kTensors, kEntries, kRoute };

// Sees intermediate values of a step; for tests and diagnosis. Views are the host's (of a device's
// memory, copies) and valid during the call only.
class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  // What is not wanted is not shown, and not brought to the host: of a long step that would be
  // gigabytes in each layer.
  [[nodiscard]] virtual bool Wants(Observed /*what*/) const { return true; }
  // Residual stream in front of layer `layer`; layer == num_layers: behind the last one.
  virtual void OnHidden(int /*layer*/, TensorView<const float> /*hc*/) {}
  // "attn_in", "attn_o" (before the inverse rotation), "attn_out", "ffn_in", "ffn_out".
  virtual void OnTensor(int /*layer*/, std::string_view /*name*/,
                        TensorView<const float> /*values*/) {}
  virtual void OnEntries(int /*layer*/, TensorView<const int32_t> /*entries*/,
                         TensorView<const int32_t> /*num_entries*/) {}
  virtual void OnRoute(int /*layer*/, TensorView<const int32_t> /*experts*/,
                       TensorView<const float> /*weights*/) {}
};

struct SampledToken {
  TokenId token = 0;
  float logprob = 0.0f;  // as SampleArgs::logprobs
};

// Wanted rows of a step that a token is sampled of where they are computed, in place of logits on
// the host.
struct StepSampling {
  std::span<const int> indices;     // into StepPlan::logits_rows, ascending
  std::span<const SampleRow> rows;  // how, for each
  std::span<SampledToken> tokens;   // of each, written; none with LaunchSampling

  [[nodiscard]] bool wants_logprobs() const {
    return std::any_of(rows.begin(), rows.end(), [](const SampleRow& row) { return row.logprob; });
  }
};

// How a model's weights get into a backend's memory, where the host cannot read that.
struct WeightUpload {
  LoadProgress progress;      // may be absent
  ExpertPlacement placement;  // outside the device only with a backend that has pinned memory
  // What brings the bytes; absent: a CopyingWriter. Must outlive the call.
  WeightWriter* writer = nullptr;
};

// What a backend has to be prepared for to run steps of up to `max_rows` tokens of such a model.
// `num_host_experts` of it lie in memory of the host.
BackendLimits BackendLimitsFor(const ModelConfig& config, int max_rows, int64_t max_positions,
                               int64_t num_host_experts = 0);

class Model {
 public:
  // `checkpoint` and `backend` must outlive the model. Prepares the backend for steps of up to
  // `max_rows` tokens and sequences of up to `max_positions`. Where the host cannot read the
  // backend's memory, weights are brought there (ModelWeights::MoveTo) as `upload` says.
  // `communicator` must outlive the model, too; nullptr is a SoleRank, and kUnimplemented is what
  // more ranks get: weights are not divided yet.
  static Result<std::unique_ptr<Model>> Create(const Checkpoint& checkpoint, Backend& backend,
                                               int max_rows, int64_t max_positions,
                                               const WeightUpload& upload = {},
                                               Communicator* communicator = nullptr);
  // What all but weights and the backend's own memory takes of a device then, buffer by buffer.
  static std::vector<int64_t> DeviceBuffers(const ModelConfig& config, int max_rows);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  // In the backend's memory.
  [[nodiscard]] const ModelWeights& weights() const { return *weights_; }
  [[nodiscard]] Backend& backend() const { return backend_; }
  // Of plain layers, or of those with compressed entries (model/rope.h).
  [[nodiscard]] const std::vector<float>& rope_frequencies(bool compressed) const {
    return compressed ? frequencies_compressed_ : frequencies_plain_;
  }
  [[nodiscard]] int max_rows() const { return activations_.max_rows(); }

  // From here on, chosen experts are asked for as soon as they are known; for weights in files that
  // are not all in memory, so on backends whose memory is the host's. Its weights are this model's.
  void SetExpertPrefetch(std::unique_ptr<ExpertPrefetch> prefetch) {
    prefetch_ = std::move(prefetch);
  }

  // The inputs of wo_a are rounded to e4m3 (`--o-proj-activations fp8`), which the official code
  // does not do. Before the first step: steps that were recorded stay as they are.
  // kInvalidArgument in exact numerics, and where a wo_a is neither fp8 nor fp4.
  Status QuantiseOProjInputs();
  [[nodiscard]] bool quantises_o_proj_inputs() const { return quantise_o_proj_inputs_; }

  // Counts from here on which routed experts steps choose: all rows of all steps that come to their
  // end. kOutOfMemory where a device has no room for the ids of a step.
  Status CountExpertUse();
  // nullptr unless they are counted.
  [[nodiscard]] const ExpertUse* expert_use() const { return expert_use_.get(); }

  // From here on, steps are recorded and done again as the options say (model/step_graphs.h); those
  // with an observer, and layers alone, are not. kUnimplemented where the backend does not record.
  // Bits are the same in any case.
  Status RecordSteps(const GraphOptions& options);
  // nullptr unless they are recorded.
  [[nodiscard]] const StepGraphs* graphs() const { return graphs_.get(); }

  // Nothing of a step is done beside something else, or whatever the backend can: the indexer's
  // operations in a side lane (model/step_lanes.h; not with an observer), experts copied ahead. The
  // latter is so from the beginning. Steps that were recorded stay as they are. Bits are the same
  // in any case.
  void SerialiseStreams(bool serial);
  [[nodiscard]] bool uses_side_lane() const { return lanes_.has_side(); }

  // Computes the plan's rows: their cache entries are written, and logits [plan.logits_rows, vocab]
  // of the wanted rows, in memory of the host. Returns when all of it is done; errors that a device
  // found are among those returned. kInvalidArgument for more than max_rows rows or token ids
  // outside the vocabulary.
  Status Forward(const StepPlan& plan, TensorView<float> logits,
                 ForwardObserver* observer = nullptr);
  // The same with some rows sampled: of these only tokens come to the host, and `logits` are those
  // of the other wanted rows, in their order. kInvalidArgument also for indices that are none of
  // the plan's; kUnimplemented where the backend has no Sample.
  Status ForwardAndSample(const StepPlan& plan, const StepSampling& sampling,
                          TensorView<float> logits);

  // Begins a step all of whose wanted rows are sampled, as LaunchSampling says behind it: no other
  // step begins before that. On a backend that RunsBehind it is under way when this returns;
  // elsewhere it is done but for the sampling. kInvalidArgument where experts are counted, else
  // errors as ForwardAndSample's, of what is known by then; the step is not launched then, and
  // earlier ones remain to be collected. `plan` and what it borrows stay until LaunchSampling.
  Status Launch(const StepPlan& plan);
  // How the rows of the step that was launched last are sampled. Its tokens are Collect's, and may
  // be token_sources of the next step, launched or not. At most kMostLaunched are not collected at
  // a time. After an error the step is forgotten; earlier ones remain to be collected.
  Status LaunchSampling(const StepSampling& sampling);
  static constexpr int kMostLaunched = RunsBehind::kMostReceipts;
  // Waits for the step that was launched first and gives its tokens, as many as it sampled. Errors
  // that a device found by then; the step is done with in any case.
  Status Collect(std::span<SampledToken> tokens);
  // Waits for all that is under way and forgets it.
  void DropLaunched();
  [[nodiscard]] int num_launched() const { return num_launched_; }

  // One layer alone on a given residual stream [rows, hc_mult, D] of the host, in place.
  Status ForwardLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                      ForwardObserver* observer = nullptr);

 private:
  Model(const Checkpoint& checkpoint, Backend& backend, int64_t max_positions,
        Communicator* communicator)
      : config_(checkpoint.config()),
        backend_(backend),
        max_positions_(max_positions),
        communicator_(communicator == nullptr ? sole_rank_ : *communicator),
        behind_(RunsBehindOf(backend)),
        lanes_(SideLaneOf(backend)) {}

  // Memory for logits and tokens where the backend computes them.
  Status AllocateOutputs(int max_rows);
  // `num_logits`: wanted rows of the step.
  Status CheckSampling(size_t num_logits, const StepSampling& sampling) const;
  Status CheckSources(const StepPlan& plan) const;
  // Ids in place of those that an earlier step sampled, where the host has them.
  StepPlan WithTokens(const StepPlan& plan);
  // The layers of a step, and what somebody wants of its rows.
  Status Run(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer);
  Status RunLayers(const StepPlan& plan, ForwardObserver* observer);
  Status TakeWanted(TensorView<float> logits);
  Status RunDirectly(ForwardObserver* observer);
  Status RunInPieces();
  Status RunWhole();
  Status RunLayer(int layer, const StepPlan& plan, TensorView<float> hc, ForwardObserver* observer);
  // Behind everything that a step called: waits, so that nothing of it is left over.
  Status EndStep(Status status);
  // Makes `plan`, filled up for its way, the one that all below work on.
  Status BeginStep(const StepPlan& plan, StepGraphs::Way way);
  // What operations would refuse of the plan.
  Status CheckPlan();
  // Rotations of the rows' positions, and of the entries' that end in the step.
  Status RotateRows();
  Status RotateAnchors();
  Status Embed();
  Status Block(int layer, TensorView<float> hc, ForwardObserver* observer);
  // A block's parts: the middle one's launches depend on more of the plan than its rows.
  Status BeforeAttention(int layer, TensorView<float> hc, ForwardObserver* observer);
  Status Attend(int layer, ForwardObserver* observer);
  Status AfterAttention(int layer, TensorView<float> hc, ForwardObserver* observer);
  Status MixtureOfExperts(int layer, ForwardObserver* observer);
  Status HcPreNorm(const HyperConnectionWeights& hc_weights, TensorView<const float> norm,
                   TensorView<const float> hc);
  Status HcPost(TensorView<float> hc);
  // sublayer_out of all ranks together.
  Status ReduceSublayer();
  Status CompressorRows(const CompressorWeights& w, bool index_side);
  Status IndexerRows(const IndexerWeights& w);
  Status SelectEntries(int layer, ForwardObserver* observer);
  // Logits of the wanted `rows`, on the host, or tokens of them.
  Status Head(std::span<const int> rows, TensorView<float> logits);
  // Where the backend computes.
  Status DeviceHead(std::span<const int> rows, TensorView<float> logits);
  // The same for the next wanted rows, whose logits are the rows `places` of logits_.
  Status TakeLogits(std::span<const int> places, TensorView<float> logits);
  // Tokens of all rows that were sampled; waits for them.
  Status TakeTokens(std::span<SampledToken> tokens);
  Status Observe(ForwardObserver* observer, int layer, std::string_view name,
                 TensorView<const float> values);

  // What operations are given of a layer and the step.
  EmbedExpandArgs EmbedArgs();
  QNormRopeKvInsertArgs InsertArgs(int layer);
  CompressInsertArgs CompressArgs(int layer, const CompressorWeights& w, bool index_side);
  IndexerTopkArgs SelectArgs(int layer);
  SparseAttentionArgs AttentionArgs(int layer);
  RouteArgs RoutingArgs(int layer);
  [[nodiscard]] TensorView<const float> RotationsOf(int layer) const;
  [[nodiscard]] const LayerWeights& Layer(int layer) const {
    return weights_->layers[static_cast<size_t>(layer)];
  }
  [[nodiscard]] int rows() const { return step_.num_rows(); }

  // `experts` [rows, experts per token] of a layer, noted for EndStep.
  Status NoteExperts(int layer, TensorView<const int32_t> experts);
  Status CountNotedExperts();

  const ModelConfig config_;
  Backend& backend_;
  const int64_t max_positions_;
  SoleRank sole_rank_;
  Communicator& communicator_;
  std::unique_ptr<ModelWeights> weights_;
  std::vector<float> frequencies_plain_, frequencies_compressed_;
  DeviceBuffer frequency_buffer_;  // of both, where the host's are out of the backend's reach
  TensorView<const float> rope_plain_, rope_compressed_;  // the same in the backend's memory
  Activations activations_;
  // Where the host cannot read logits or the backend samples: those of some rows at a time
  // [rows, vocab].
  DeviceBuffer logits_buffer_;
  TensorView<float> logits_;
  bool quantise_o_proj_inputs_ = false;
  // Tokens of the step's sampled rows and their log-probabilities [max_rows], in the backend's
  // memory. They stay at their place until the next step that samples.
  DeviceBuffer sampled_buffer_;
  TensorView<int32_t> sampled_tokens_;
  TensorView<float> sampled_logprobs_;
  std::vector<int32_t> host_tokens_;  // copies
  std::vector<float> host_logprobs_;
  StepSampling sampling_;        // of the step
  std::span<const int> wanted_;  // its rows whose logits somebody wants,
  bool has_logits_ = false;      // which are in logits_ with those of all rows
  // Steps that were launched and are not collected, oldest first; their tokens, or the receipts of
  // those that RunsBehind brings.
  struct Launched {
    size_t num_tokens = 0;
    bool with_logprobs = false;
    int receipt = -1;
    std::vector<SampledToken> tokens;
  };
  RunsBehind* const behind_;  // nullptr where the backend does not
  std::array<Launched, kMostLaunched> launched_;
  int num_launched_ = 0;
  bool awaits_sampling_ = false;    // a step behind those, which LaunchSampling is for
  bool keeps_tokens_ = false;       // sampled_tokens_ are those of the step launched last
  std::vector<TokenId> token_ids_;  // of WithTokens
  int64_t next_wanted_ = 0;         // rows that TakeLogits took so far: of all,
  int64_t next_sampled_ = 0;        // and of those that are sampled
  std::vector<int> sampled_places_, host_places_, all_places_;
  std::unique_ptr<ExpertPrefetch> prefetch_;  // absent where weights are in memory
  // Where experts are counted: what the step's layers have chosen so far, one layer after the
  // other, in the backend's memory, so that a device is asked once a step and not in every layer.
  std::unique_ptr<ExpertUse> expert_use_;
  DeviceBuffer noted_buffer_;
  std::vector<int32_t> noted_ids_;  // on the host
  int first_noted_layer_ = 0;
  int num_noted_layers_ = 0;
  int num_counted_rows_ = 0;            // of the step, without those that fill it up
  std::unique_ptr<StepGraphs> graphs_;  // absent where steps are not recorded
  std::vector<int> checked_layers_;     // of each kind one
  StepLanes lanes_;
  bool prefetches_experts_ = true;  // with the backend
  StepPlan step_;                   // the plan of the step, with anchors
};

}  // namespace fathom
