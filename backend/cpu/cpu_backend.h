// CpuBackend: every operation threaded and vectorised, on host memory. The default backend.
//
// Weights are used as stored. FP4 rows are multiplied with their e4m3 inputs as integers,
// everything else as floats, decoded on the way; sums over groups, or products, are fp32. Results
// are the same, bit for bit, for any number of threads, any number of rows in a step and any
// neighbours in the batch; they differ between instruction sets (and from the reference) by the
// order of sums. Single-threaded like every Backend: one owner calls the operations and they run on
// the pool. Operations allocate nothing; all scratch memory is laid out in Prepare.
#pragma once

#include <memory>
#include <unordered_map>

#include "backend/backend.h"
#include "backend/cpu/cpu_options.h"
#include "backend/cpu/products.h"
#include "base/parallel.h"

namespace fathom {

class CpuBackend final : public Backend {
 public:
  // The pool outlives the backend and runs no other loops while an operation does.
  CpuBackend(Numerics numerics, ThreadPool& pool, const CpuOptions& options = {});
  // With a pool of its own; `num_threads` counts the caller.
  CpuBackend(Numerics numerics, int num_threads, const CpuOptions& options = {});
  ~CpuBackend() override;

  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  // Operations on more than these limits get kInvalidArgument.
  Status Prepare(const BackendLimits& limits) override;
  Status AddWeight(const WeightView& weight) override;

 protected:
  Status DoEmbedExpand(const EmbedExpandArgs& args) override;
  Status DoHcPreNorm(const HcPreNormArgs& args) override;
  Status DoHcPost(const HcPostArgs& args) override;
  Status DoRmsNorm(const RmsNormArgs& args) override;
  Status DoLinear(const LinearArgs& args) override;
  Status DoRopeTable(const RopeTableArgs& args) override;
  Status DoQNormRopeKvInsert(const QNormRopeKvInsertArgs& args) override;
  Status DoCompressInsert(const CompressInsertArgs& args) override;
  Status DoIndexerTopk(const IndexerTopkArgs& args) override;
  Status DoSparseAttention(const SparseAttentionArgs& args) override;
  Status DoInverseRopeOut(const InverseRopeOutArgs& args) override;
  Status DoRoute(const RouteArgs& args) override;
  Status DoMoe(const MoeArgs& args) override;
  Status DoHead(const HeadArgs& args) override;

 private:
  struct Scratch;

  [[nodiscard]] bool official() const { return numerics() == Numerics::kOfficial; }

  // Runs body(i, thread) for i in [0, n), where each i costs about `work` multiplications;
  // neighbours are joined to tasks that are worth handing to another thread. A function of the
  // shape only.
  template <typename Body>
  void ForEach(int64_t n, int64_t work, const Body& body);
  // The same where each i reads `bytes` of weights behind those of i - 1. With `group`, n is made
  // of groups of so many, each of which is shared out to the memory nodes by itself (an expert's
  // rows).
  template <typename Body>
  void ForBlocks(int64_t n, int64_t work, int64_t bytes, int64_t group, const Body& body);
  // Runs body(i, thread) for i in [0, n), `chunk` of them to a task; a chunk divides a group. All
  // of it costs about `work` multiplications.
  template <typename Body>
  void ForChunks(int64_t n, int64_t chunk, int64_t group, int64_t work, const Body& body);

  // What a weight takes as its input in these numerics.
  enum class InputForm {
    kFloats,  // as it is
    kE4m3,    // official e4m3 values, as floats
    kBytes,   // the same values as digits, or int8 ones, for FP4 weights
    kInt8,    // int8 values for the weight's int8 copy
  };
  static constexpr size_t kNumInputForms = 4;
  [[nodiscard]] InputForm FormOf(const WeightView& weight) const;

  // The copy that AddWeight made, or null.
  [[nodiscard]] const cpu::Int8Weight* Int8Of(const WeightView& weight) const;
  [[nodiscard]] cpu::ByteForm ByteFormOf(InputForm form) const;

  // Columns [first, first + cols) of the rows of x in that form, in scratch memory that the next
  // call for the same form overwrites.
  cpu::InputRows PrepareInput(TensorView<const float> x, InputForm form, int64_t first,
                              int64_t cols);
  // All columns.
  cpu::InputRows PrepareInput(TensorView<const float> x, InputForm form) {
    return PrepareInput(x, form, 0, x.row_size());
  }
  // One row: what an input of that form is in memory. `out` has room for PermuteInput of as many
  // floats, and may be x.
  void PrepareRow(std::span<const float> x, InputForm form, bool permute, int thread, float* out);

  // Multiplies the rows of `a` and `b` with inputs and calls emit(first, count, sums) for chunks of
  // them; sums is as cpu::Multiply leaves it.
  template <typename Emit>
  void MultiplyRows(const cpu::RowRange& a, const cpu::RowRange& b, const cpu::InputRows& x,
                    int thread, const Emit& emit);

  // out = x . weight, rounded to bf16 if asked; x has the weight's form. Rows of `out` may be
  // longer than the weight's rows.
  void Multiply(const cpu::InputRows& x, const WeightView& weight, bool round,
                TensorView<float> out);
  // The same for rows [row, row + num_rows) of the weight.
  void MultiplySlice(const cpu::InputRows& x, const WeightView& weight, int row, int num_rows,
                     bool round, TensorView<float> out);

  std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool& pool_;
  const CpuOptions options_;
  std::unordered_map<const void*, std::unique_ptr<cpu::Int8Weight>> int8_weights_;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace fathom
