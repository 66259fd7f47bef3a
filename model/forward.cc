// Steps from their plan to logits: directly, in recorded pieces or as one recording.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/host_view.h"
#include "model/model.h"

namespace fathom {
namespace {

// Positions of the anchors of all entries that end in the step, in the order that CompressInsert
// wants.
void CollectAnchors(const StepPlan& plan, int ratio, std::vector<Position>& anchors) {
  anchors.clear();
  for (const SequenceRows& rows : plan.sequences) {
    const EndingEntries ending = EntriesEnding(rows, ratio);
    for (int j = 0; j < ending.count; ++j) anchors.push_back(ratio * (ending.first + j));
  }
}

}  // namespace

Status Model::Forward(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer) {
  sampling_ = {};
  first_noted_layer_ = 0;
  num_noted_layers_ = config_.num_layers;
  return EndStep(Run(plan, logits, observer));
}

Status Model::ForwardAndSample(const StepPlan& plan, const StepSampling& sampling,
                               TensorView<float> logits) {
  if (sampling.tokens.size() != sampling.indices.size()) {
    return InvalidArgument("sampling: room for one token of each row needed");
  }
  FATHOM_RETURN_IF_ERROR(CheckSampling(plan.logits_rows.size(), sampling));
  sampling_ = sampling;
  first_noted_layer_ = 0;
  num_noted_layers_ = config_.num_layers;
  Status status = Run(plan, logits, nullptr);
  if (status.ok()) status = TakeTokens(sampling.tokens);
  return EndStep(std::move(status));
}

Status Model::EndStep(Status status) {
  Status done = backend_.Synchronize();
  if (!status.ok() || !done.ok()) return status.ok() ? done : status;
  return expert_use_ == nullptr ? OkStatus() : CountNotedExperts();
}

Status Model::Run(const StepPlan& plan, TensorView<float> logits, ForwardObserver* observer) {
  if (awaits_sampling_) return InvalidArgument("the step that was launched is not sampled yet");
  FATHOM_RETURN_IF_ERROR(RunLayers(plan, observer));
  return TakeWanted(logits);
}

Status Model::TakeWanted(TensorView<float> logits) {
  next_wanted_ = 0;
  next_sampled_ = 0;
  keeps_tokens_ = false;
  return has_logits_ ? TakeLogits(wanted_, logits) : Head(wanted_, logits);
}

Status Model::RunLayers(const StepPlan& plan, ForwardObserver* observer) {
  const auto way =
      graphs_ == nullptr || observer != nullptr ? StepGraphs::Way::kDirect : graphs_->WayOf(plan);
  FATHOM_RETURN_IF_ERROR(BeginStep(plan, way));
  lanes_.BeginStep(rows(), way == StepGraphs::Way::kPieces, /*one_lane=*/observer != nullptr);
  has_logits_ = false;
  wanted_ = plan.logits_rows;
  switch (way) {
    case StepGraphs::Way::kDirect:
      return RunDirectly(observer);
    case StepGraphs::Way::kPieces:
      return RunInPieces();
    case StepGraphs::Way::kWhole:
      return RunWhole();
  }
  return OkStatus();
}

Status Model::RunDirectly(ForwardObserver* observer) {
  FATHOM_RETURN_IF_ERROR(RotateRows());
  FATHOM_RETURN_IF_ERROR(RotateAnchors());
  FATHOM_RETURN_IF_ERROR(Embed());
  const TensorView<float> hc = activations_.hc.First(rows());
  for (int layer = 0; layer <= config_.num_layers; ++layer) {
    if (observer != nullptr && observer->Wants(Observed::kHidden)) {
      HostView<float> seen;
      FATHOM_RETURN_IF_ERROR(seen.Read(backend_.memory(), hc));
      observer->OnHidden(layer, seen.view());
    }
    if (layer < config_.num_layers) FATHOM_RETURN_IF_ERROR(Block(layer, hc, observer));
  }
  return OkStatus();
}

Status Model::RunInPieces() {
  const TensorView<float> hc = activations_.hc.First(rows());
  FATHOM_RETURN_IF_ERROR(RotateAnchors());
  for (int layer = 0; layer <= config_.num_layers; ++layer) {
    const auto piece = [&]() -> Status {
      if (layer == 0) {
        FATHOM_RETURN_IF_ERROR(RotateRows());
        FATHOM_RETURN_IF_ERROR(Embed());
      } else {
        FATHOM_RETURN_IF_ERROR(AfterAttention(layer - 1, hc, nullptr));
      }
      return layer < config_.num_layers ? BeforeAttention(layer, hc, nullptr) : OkStatus();
    };
    FATHOM_RETURN_IF_ERROR(graphs_->Do(layer, piece));
    if (layer < config_.num_layers) FATHOM_RETURN_IF_ERROR(Attend(layer, nullptr));
  }
  return OkStatus();
}

Status Model::RunWhole() {
  // Logits of all rows, where a device has room for them: which ones are wanted differs.
  const bool with_head = rows() <= logits_.dim(0);
  const auto step = [&]() -> Status {
    FATHOM_RETURN_IF_ERROR(RotateRows());
    FATHOM_RETURN_IF_ERROR(RotateAnchors());
    FATHOM_RETURN_IF_ERROR(Embed());
    const TensorView<float> hc = activations_.hc.First(rows());
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      FATHOM_RETURN_IF_ERROR(Block(layer, hc, nullptr));
    }
    return with_head ? DeviceHead(step_.logits_rows, logits_.First(rows())) : OkStatus();
  };
  FATHOM_RETURN_IF_ERROR(graphs_->Do(0, step));
  has_logits_ = with_head;
  return OkStatus();
}

Status Model::Embed() { return backend_.EmbedExpand(EmbedArgs()); }

EmbedExpandArgs Model::EmbedArgs() {
  return {step_.token_ids, weights_->embed, activations_.hc.First(rows())};
}

Status Model::DeviceHead(std::span<const int> rows, TensorView<float> logits) {
  HeadArgs head;
  head.hc = activations_.hc.First(step_.num_rows());
  head.rows = rows;
  head.fn = weights_->hc_head.fn;
  head.base = weights_->hc_head.base;
  head.scale = weights_->hc_head.scale;
  head.norm_weight = weights_->norm;
  head.head = weights_->head;
  head.norm_eps = static_cast<float>(config_.rms_norm_eps);
  head.hc_eps = static_cast<float>(config_.hc_eps);
  head.logits = logits;
  return backend_.Head(head);
}

Status Model::Head(std::span<const int> rows, TensorView<float> logits) {
  if (rows.empty()) return OkStatus();
  if (sampling_.indices.empty() && backend_.memory().host_readable()) {
    return DeviceHead(rows, logits);
  }
  const auto total = static_cast<int64_t>(rows.size());
  for (int64_t begin = 0; begin < total; begin += logits_.dim(0)) {
    const int64_t n = std::min(logits_.dim(0), total - begin);
    FATHOM_RETURN_IF_ERROR(DeviceHead(
        rows.subspan(static_cast<size_t>(begin), static_cast<size_t>(n)), logits_.First(n)));
    FATHOM_RETURN_IF_ERROR(
        TakeLogits(std::span(all_places_).first(static_cast<size_t>(n)), logits));
  }
  return OkStatus();
}

Status Model::ForwardLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                           ForwardObserver* observer) {
  if (layer < 0 || layer >= config_.num_layers) {
    return InvalidArgument("layer " + std::to_string(layer) + " of " +
                           std::to_string(config_.num_layers));
  }
  first_noted_layer_ = layer;
  num_noted_layers_ = 1;
  return EndStep(RunLayer(layer, plan, hc, observer));
}

Status Model::RunLayer(int layer, const StepPlan& plan, TensorView<float> hc,
                       ForwardObserver* observer) {
  if (awaits_sampling_) return InvalidArgument("the step that was launched is not sampled yet");
  FATHOM_RETURN_IF_ERROR(BeginStep(plan, StepGraphs::Way::kDirect));
  lanes_.BeginStep(rows(), /*pieces=*/false, /*one_lane=*/observer != nullptr);
  FATHOM_RETURN_IF_ERROR(RotateRows());
  FATHOM_RETURN_IF_ERROR(RotateAnchors());
  DeviceMemory& memory = backend_.memory();
  if (memory.host_readable()) return Block(layer, hc, observer);
  const TensorView<float> copy = activations_.hc.First(plan.num_rows());
  if (copy.shape() != hc.shape()) return InvalidArgument("the residual stream has another shape");
  auto* const data = reinterpret_cast<std::byte*>(copy.data());
  FATHOM_RETURN_IF_ERROR(memory.CopyIn(data, std::as_bytes(hc.elements())));
  FATHOM_RETURN_IF_ERROR(Block(layer, copy, observer));
  return memory.CopyOut(std::as_writable_bytes(hc.elements()), data);
}

Status Model::BeginStep(const StepPlan& plan, StepGraphs::Way way) {
  const int n = plan.num_rows();
  if (n < 1 || n > max_rows()) {
    return InvalidArgument("a step of " + std::to_string(n) + " tokens, room for 1 to " +
                           std::to_string(max_rows()));
  }
  FATHOM_RETURN_IF_ERROR(CheckSources(plan));
  num_counted_rows_ = n;
  const StepPlan known = WithTokens(plan);
  if (prefetch_ != nullptr) prefetch_->BeginStep(known.token_ids);
  step_ = way == StepGraphs::Way::kDirect ? known : graphs_->Pad(known, way);
  for (const int ratio : {4, 128}) {
    std::vector<Position>& anchors = activations_.anchors[AnchorsOf(ratio)];
    CollectAnchors(step_, ratio, anchors);
    if (way == StepGraphs::Way::kWhole) anchors.resize(static_cast<size_t>(rows()), 0);
    step_.anchors[AnchorsOf(ratio)] = anchors;
  }
  // What is done again asks nothing.
  if (way != StepGraphs::Way::kDirect) FATHOM_RETURN_IF_ERROR(CheckPlan());
  FATHOM_RETURN_IF_ERROR(backend_.BeginStep(step_));
  return behind_ == nullptr ? OkStatus()
                            : behind_->PlaceTokens(plan.token_sources, sampled_tokens_);
}

Status Model::CheckPlan() {
  FATHOM_RETURN_IF_ERROR(Check(EmbedArgs()));
  for (const int layer : checked_layers_) {
    const AttentionWeights& w = Layer(layer).attn;
    FATHOM_RETURN_IF_ERROR(Check(InsertArgs(layer)));
    if (Layer(layer).ratio != 0) {
      FATHOM_RETURN_IF_ERROR(Check(CompressArgs(layer, w.compressor, false)));
    }
    if (Layer(layer).ratio == 4) {
      FATHOM_RETURN_IF_ERROR(Check(CompressArgs(layer, w.indexer.compressor, true)));
      FATHOM_RETURN_IF_ERROR(Check(SelectArgs(layer)));
    }
    FATHOM_RETURN_IF_ERROR(Check(AttentionArgs(layer)));
    FATHOM_RETURN_IF_ERROR(Check(RoutingArgs(layer)));
  }
  return OkStatus();
}

Status Model::RotateRows() {
  FATHOM_RETURN_IF_ERROR(
      backend_.RopeTable({step_.positions, rope_plain_, activations_.rope_plain.First(rows())}));
  return backend_.RopeTable(
      {step_.positions, rope_compressed_, activations_.rope_compressed.First(rows())});
}

Status Model::RotateAnchors() {
  for (size_t r = 0; r < step_.anchors.size(); ++r) {
    const auto n = static_cast<int64_t>(step_.anchors[r].size());
    FATHOM_RETURN_IF_ERROR(backend_.RopeTable(
        {step_.anchors[r], rope_compressed_, activations_.rope_anchors[r].First(n)}));
  }
  return OkStatus();
}

}  // namespace fathom
