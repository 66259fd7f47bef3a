// What becomes of a step's logits: tokens where they are computed, or the host's.
#include <algorithm>
#include <string>

#include "model/model.h"

namespace fathom {

Status Model::CheckSampling(size_t num_logits, const StepSampling& sampling) const {
  const std::span<const int> indices = sampling.indices;
  if (indices.empty()) return OkStatus();
  if (!backend_.samples()) {
    return Unimplemented("sampling: not an operation of the " + std::string(backend_.name()) +
                         " backend");
  }
  int before = -1;
  for (const int index : indices) {
    if (index <= before || index >= static_cast<int>(num_logits)) {
      return InvalidArgument("sampling: rows must be ascending ones of the step's logits");
    }
    before = index;
  }
  if (sampling.rows.size() != indices.size() ||
      static_cast<int64_t>(indices.size()) > sampled_tokens_.size()) {
    return InvalidArgument("sampling: one setting for each row needed");
  }
  return OkStatus();
}

Status Model::TakeLogits(std::span<const int> places, TensorView<float> logits) {
  sampled_places_.clear();
  host_places_.clear();
  const int64_t first_sampled = next_sampled_;
  const int64_t first_host = next_wanted_ - next_sampled_;
  for (const int place : places) {
    const auto next = static_cast<size_t>(next_sampled_);
    const bool sampled = next < sampling_.indices.size() && sampling_.indices[next] == next_wanted_;
    (sampled ? sampled_places_ : host_places_).push_back(place);
    if (sampled) ++next_sampled_;
    ++next_wanted_;
  }
  for (size_t begin = 0; begin < host_places_.size();) {
    // Rows that follow each other go together.
    size_t end = begin + 1;
    while (end < host_places_.size() && host_places_[end] == host_places_[end - 1] + 1) ++end;
    const auto n = static_cast<int64_t>(end - begin);
    FATHOM_RETURN_IF_ERROR(backend_.memory().CopyOut(
        std::as_writable_bytes(
            logits.Slice(first_host + static_cast<int64_t>(begin), n).elements()),
        reinterpret_cast<const std::byte*>(logits_.row(host_places_[begin]).data())));
    begin = end;
  }
  if (sampled_places_.empty()) return OkStatus();
  const auto count = static_cast<int64_t>(sampled_places_.size());
  return backend_.Sample(
      {logits_, sampled_places_,
       sampling_.rows.subspan(static_cast<size_t>(first_sampled), sampled_places_.size()),
       sampled_tokens_.Slice(first_sampled, count), sampled_logprobs_.Slice(first_sampled, count)});
}

Status Model::TakeTokens(std::span<SampledToken> tokens) {
  const size_t n = tokens.size();
  if (n == 0) return OkStatus();
  DeviceMemory& memory = backend_.memory();
  host_tokens_.resize(n);
  host_logprobs_.assign(n, 0.0f);
  FATHOM_RETURN_IF_ERROR(
      memory.CopyOut(std::as_writable_bytes(std::span(host_tokens_)), sampled_buffer_.data()));
  if (sampling_.wants_logprobs()) {
    FATHOM_RETURN_IF_ERROR(
        memory.CopyOut(std::as_writable_bytes(std::span(host_logprobs_)),
                       reinterpret_cast<const std::byte*>(sampled_logprobs_.data())));
  }
  for (size_t i = 0; i < n; ++i) tokens[i] = {host_tokens_[i], host_logprobs_[i]};
  return OkStatus();
}

}  // namespace fathom
