// Communicator: what the ranks of one model tell each other.
//
// A model may be divided over several devices, each run by a rank of its own: a process or a
// thread with a Backend. Where parts of a layer come together the model calls a collective
// operation, in the same order in every rank. Values lie in the backend's memory; a collective
// comes after what the backend was called for before and in front of what it is called for later,
// recordings included, as an operation of its own would. Where there is one rank, none of them does
// anything.
#pragma once

#include "base/status.h"
#include "base/tensor_view.h"

namespace fathom {

class Communicator {
 public:
  Communicator() = default;
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] virtual int rank() const = 0;       // from 0 on
  [[nodiscard]] virtual int num_ranks() const = 0;  // at least 1

  // Every rank's values become the sums over all ranks, added in the order of ranks in fp32: the
  // same bits in each of them, whatever else they compute.
  virtual Status AllReduceSum(TensorView<float> values) = 0;
};

// The only rank of a model.
class SoleRank final : public Communicator {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int num_ranks() const override { return 1; }
  Status AllReduceSum(TensorView<float> /*values*/) override { return OkStatus(); }
};

}  // namespace fathom
