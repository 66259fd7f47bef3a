// ExpertPrefetch: asks the system to read the experts that a step has chosen, before they are used.
//
// For weights that are used in their files' mappings and are not all in memory, as when a
// checkpoint is larger than that: the disk then works on all chosen experts of a layer at once, in
// large requests, where faults would fetch them one after the other in small ones. A model whose
// weights are in memory has none and pays nothing. Changes speed only. Single-threaded: owned by
// the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "base/tensor_view.h"
#include "base/types.h"
#include "model/weights.h"

namespace fathom {

// What is asked of the system; tests count instead.
struct PageHints {
  std::function<bool(std::span<const std::byte>)> in_memory = InMemory;
  std::function<void(std::span<const std::byte>)> will_need = [](std::span<const std::byte> bytes) {
    Advise(bytes, MemoryAdvice::kWillNeed);
  };
};

class ExpertPrefetch {
 public:
  // `weights` must outlive it. At most `max_bytes` are asked for together: pages beyond what memory
  // holds would push each other out before they are used.
  ExpertPrefetch(const ModelWeights& weights, uint64_t max_bytes, PageHints hints = {});

  // Whether all routed experts of the main layers are in memory now.
  [[nodiscard]] bool AllInMemory() const;

  // The experts of all hash-routed layers follow from the step's tokens, so they are asked for
  // before its first operation.
  void BeginStep(std::span<const TokenId> token_ids);
  // `experts` [rows, experts per token], behind the routing of a scored layer; nothing for others.
  void Routed(int layer, TensorView<const int32_t> experts);

 private:
  struct Expert {
    std::vector<std::span<const std::byte>> ranges;  // neighbours joined
    uint64_t bytes = 0;
    int64_t asked = 0;  // the last round that wanted it
  };
  void BeginRound();
  void Want(size_t layer, int64_t expert);

  const ModelWeights& weights_;
  const uint64_t max_bytes_;
  const PageHints hints_;
  std::vector<std::vector<Expert>> layers_;
  int64_t round_ = 0;
  uint64_t bytes_left_ = 0;  // of this round
};

}  // namespace fathom
