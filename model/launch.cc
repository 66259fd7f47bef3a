// Steps whose tokens come later: the next one may begin before the host knows them.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "model/model.h"

namespace fathom {

Status Model::CheckSources(const StepPlan& plan) const {
  // Of the last step, if it was launched: others sample to the same place.
  const size_t num_sampled = num_launched_ == 0 || !keeps_tokens_
                                 ? 0
                                 : launched_[static_cast<size_t>(num_launched_) - 1].num_tokens;
  for (const TokenSource& source : plan.token_sources) {
    if (source.row < 0 || source.row >= plan.num_rows() || source.sampled < 0 ||
        static_cast<size_t>(source.sampled) >= num_sampled) {
      return InvalidArgument("token_sources: row " + std::to_string(source.row) + " of " +
                             std::to_string(plan.num_rows()) + " takes token " +
                             std::to_string(source.sampled) + " of " + std::to_string(num_sampled) +
                             " of the step before");
    }
  }
  return OkStatus();
}

StepPlan Model::WithTokens(const StepPlan& plan) {
  if (plan.token_sources.empty() || behind_ != nullptr) return plan;
  const std::vector<SampledToken>& last = launched_[static_cast<size_t>(num_launched_) - 1].tokens;
  token_ids_.assign(plan.token_ids.begin(), plan.token_ids.end());
  for (const TokenSource& source : plan.token_sources) {
    token_ids_[static_cast<size_t>(source.row)] = last[static_cast<size_t>(source.sampled)].token;
  }
  StepPlan known = plan;
  known.token_ids = token_ids_;
  return known;
}

Status Model::Launch(const StepPlan& plan) {
  if (expert_use_ != nullptr) {
    return InvalidArgument("a step whose experts are counted is not launched ahead");
  }
  if (awaits_sampling_) return InvalidArgument("the step that was launched is not sampled yet");
  if (num_launched_ == kMostLaunched) {
    return InvalidArgument("as many steps as can be are under way");
  }
  Status status = RunLayers(plan, nullptr);
  if (!status.ok()) return EndStep(std::move(status));
  awaits_sampling_ = true;
  return OkStatus();
}

Status Model::LaunchSampling(const StepSampling& sampling) {
  if (!awaits_sampling_) return InvalidArgument("no step was launched that is to be sampled");
  awaits_sampling_ = false;
  Status status = CheckSampling(wanted_.size(), sampling);
  if (status.ok() && sampling.indices.size() != wanted_.size()) {
    status = InvalidArgument("a launched step's logits are not the host's: all rows are sampled");
  }
  Launched& step = launched_[static_cast<size_t>(num_launched_)];
  step.num_tokens = sampling.indices.size();
  step.with_logprobs = sampling.wants_logprobs();
  sampling_ = sampling;
  if (status.ok()) status = TakeWanted({});
  if (status.ok() && behind_ != nullptr) {
    const auto bytes_of = [&step]<typename T>(TensorView<const T> values) {
      return std::as_bytes(values.First(static_cast<int64_t>(step.num_tokens)).elements());
    };
    const auto logprobs = step.with_logprobs ? bytes_of(TensorView<const float>(sampled_logprobs_))
                                             : std::span<const std::byte>();
    Result<int> receipt =
        behind_->BeginReceive(bytes_of(TensorView<const int32_t>(sampled_tokens_)), logprobs);
    if (receipt.ok()) {
      step.receipt = *receipt;
      ++num_launched_;
      keeps_tokens_ = true;
      return OkStatus();
    }
    status = receipt.status();
  }
  if (status.ok()) {
    step.tokens.resize(step.num_tokens);
    status = TakeTokens(step.tokens);
  }
  FATHOM_RETURN_IF_ERROR(EndStep(std::move(status)));
  ++num_launched_;
  keeps_tokens_ = true;
  return OkStatus();
}

Status Model::Collect(std::span<SampledToken> tokens) {
  if (num_launched_ == 0) return InvalidArgument("no step is under way");
  // Its place is free from here on.
  std::rotate(launched_.begin(), launched_.begin() + 1, launched_.end());
  --num_launched_;
  const Launched& step = launched_.back();
  const size_t n = step.num_tokens;
  std::span<const std::byte> bytes;
  if (behind_ != nullptr) {
    FATHOM_ASSIGN_OR_RETURN(bytes, behind_->Receive(step.receipt));
  }
  if (tokens.size() != n) {
    return InvalidArgument("room for " + std::to_string(tokens.size()) + " tokens of a step of " +
                           std::to_string(n));
  }
  if (behind_ == nullptr) {
    std::copy(step.tokens.begin(), step.tokens.end(), tokens.begin());
    return OkStatus();
  }
  const std::byte* const logprobs = bytes.data() + n * sizeof(int32_t);
  for (size_t i = 0; i < n; ++i) {
    tokens[i] = {};
    std::memcpy(&tokens[i].token, bytes.data() + i * sizeof(int32_t), sizeof(int32_t));
    if (!step.with_logprobs) continue;
    std::memcpy(&tokens[i].logprob, logprobs + i * sizeof(float), sizeof(float));
  }
  return OkStatus();
}

void Model::DropLaunched() {
  // Errors are those of work that nobody wants.
  static_cast<void>(backend_.Synchronize());
  awaits_sampling_ = false;
  for (; num_launched_ > 0; --num_launched_) {
    const int receipt = launched_[static_cast<size_t>(num_launched_) - 1].receipt;
    if (behind_ != nullptr) static_cast<void>(behind_->Receive(receipt));
  }
}

}  // namespace fathom
