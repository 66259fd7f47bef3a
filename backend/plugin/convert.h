// Operands of fathom's operations as those of the plug-in interface. Views only: what they point at
// stays where it is.
#pragma once

#include <vector>

#include "backend/page_format.h"
#include "backend/plugin/backend_plugin.h"
#include "backend/step_plan.h"
#include "backend/weights.h"
#include "base/tensor_view.h"

namespace fathom::plugin {

// An args struct of the interface with its size.
template <typename Args>
Args Sized() {
  Args args = {};
  args.struct_size = sizeof(Args);
  return args;
}

namespace internal {

// Views without elements are absent.
template <typename C, typename T>
C ToTensor(const TensorView<T>& view) {
  C tensor = {};
  if (view.empty()) return tensor;
  tensor.data = view.data();
  for (int i = 0; i < 4; ++i) tensor.shape[i] = view.dim(i);
  tensor.rank = view.rank();
  return tensor;
}

}  // namespace internal

inline FathomF32 ToC(const TensorView<float>& view) { return internal::ToTensor<FathomF32>(view); }
inline FathomConstF32 ToC(const TensorView<const float>& view) {
  return internal::ToTensor<FathomConstF32>(view);
}
inline FathomI32 ToC(const TensorView<int32_t>& view) {
  return internal::ToTensor<FathomI32>(view);
}
inline FathomConstI32 ToC(const TensorView<const int32_t>& view) {
  return internal::ToTensor<FathomConstI32>(view);
}
inline FathomConstI64 ToC(const TensorView<const int64_t>& view) {
  return internal::ToTensor<FathomConstI64>(view);
}

FathomWeight ToC(const WeightView& weight);
FathomExpert ToC(const ExpertWeights& expert);
FathomPages ToC(const PageView& pages);
int32_t ToC(EntryEncoding encoding);
int32_t ToC(CacheKind kind);
inline uint32_t BitOf(EntryEncoding encoding) { return 1u << ToC(encoding); }

// A StepPlan in the interface's form. Keeps its memory, so that steps as large as earlier ones
// allocate nothing.
class PlanCopy {
 public:
  PlanCopy() = default;
  PlanCopy(const PlanCopy&) = delete;
  PlanCopy& operator=(const PlanCopy&) = delete;

  // Borrows the plan's ids, positions and blocks. The result stays until the next call.
  const FathomStepPlan* Set(const StepPlan& plan);
  [[nodiscard]] const FathomStepPlan* get() const { return &plan_; }

 private:
  FathomStepPlan plan_ = {};
  std::vector<FathomSequenceRows> sequences_;
  std::vector<FathomBlockTable> tables_[FATHOM_NUM_CLASSES];
  std::vector<FathomPages> pages_;
};

}  // namespace fathom::plugin
