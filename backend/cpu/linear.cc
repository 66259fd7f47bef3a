// See backend/ops/linear.h for the contract.
#include "backend/cpu/scratch.h"

namespace fathom {

CpuBackend::InputForm CpuBackend::FormOf(const WeightView& weight) const {
  if (!official() || !weight.quantised()) return InputForm::kFloats;
  if (Int8Of(weight) != nullptr) return InputForm::kInt8;
  return weight.dtype == DType::kI8 ? InputForm::kBytes : InputForm::kE4m3;
}

const cpu::Int8Weight* CpuBackend::Int8Of(const WeightView& weight) const {
  if (int8_weights_.empty() || weight.dtype != DType::kF8E4M3) return nullptr;
  const auto found = int8_weights_.find(weight.data);
  return found == int8_weights_.end() ? nullptr : found->second.get();
}

cpu::ByteForm CpuBackend::ByteFormOf(InputForm form) const {
  if (form == InputForm::kInt8) return cpu::ByteForm::kInt8Dense;
  return options_.int8_activations ? cpu::ByteForm::kInt8 : cpu::ByteForm::kDigits;
}

void CpuBackend::PrepareRow(std::span<const float> x, InputForm form, bool permute, int thread,
                            float* out) {
  float* between = scratch_->thread_row.part(thread);
  const bool bytes = form == InputForm::kBytes || form == InputForm::kInt8;
  if (form == InputForm::kE4m3) {
    // A permuted row needs its values in order first.
    float* values = permute ? between : out;
    cpu::QuantiseE4m3Groups(x, 128, values);
    x = {values, x.size()};
  } else if (x.data() == out && (bytes || permute)) {
    std::copy(x.begin(), x.end(), between);
    x = {between, x.size()};
  }
  if (!bytes) {
    if (permute) cpu::PermuteInput(x, out);
    return;
  }
  const cpu::ByteSlot slot = cpu::SlotAt(out, static_cast<int64_t>(x.size()));
  switch (ByteFormOf(form)) {
    case cpu::ByteForm::kDigits:
      return cpu::SplitE4m3Row(x, slot);
    case cpu::ByteForm::kInt8:
      return cpu::Int8Row(x, cpu::kFp4Group, slot);
    case cpu::ByteForm::kInt8Dense:
      return cpu::Int8Row(x, cpu::kInt8Group, slot);
  }
}

cpu::InputRows CpuBackend::PrepareInput(TensorView<const float> x, InputForm form, int64_t first,
                                        int64_t cols) {
  const int64_t n = x.dim(0);
  const auto slice = [&](int64_t i) {
    return x.row(i).subspan(static_cast<size_t>(first), static_cast<size_t>(cols));
  };
  const bool permute = n > cpu::kDirectInputs;
  Scratch& scratch = *scratch_;
  const bool bytes = form == InputForm::kBytes || form == InputForm::kInt8;
  const float** floats =
      form == InputForm::kE4m3 ? scratch.e4m3_rows.data() : scratch.float_rows.data();
  const void** slots =
      form == InputForm::kInt8 ? scratch.int8_rows.data() : scratch.byte_rows.data();
  if (form == InputForm::kFloats && !permute) {
    for (int64_t i = 0; i < n; ++i) floats[i] = slice(i).data();
    return {floats, nullptr, nullptr, n};
  }
  const auto& rows = form == InputForm::kBytes  ? scratch.byte_inputs
                     : form == InputForm::kInt8 ? scratch.int8_inputs
                     : form == InputForm::kE4m3 ? scratch.e4m3_inputs
                                                : scratch.float_inputs;
  ForEach(n, 4 * cols, [&](int64_t i, int thread) {
    float* row = rows.part(i);
    PrepareRow(slice(i), form, permute, thread, row);
    if (bytes) {
      slots[i] = row;
    } else {
      floats[i] = row;
    }
  });
  if (bytes) return {nullptr, nullptr, slots, n, ByteFormOf(form)};
  return {permute ? nullptr : floats, permute ? floats : nullptr, nullptr, n};
}

void CpuBackend::MultiplySlice(const cpu::InputRows& x, const WeightView& weight, int row,
                               int num_rows, bool round, TensorView<float> out) {
  if (x.n == 0) return;
  // Narrow weights (a router of 16 experts) leave few row blocks, so long steps are split as well.
  constexpr int64_t kInputsPerTask = cpu::kSumInputs;
  constexpr int kRows = 2 * cpu::kRowBlock;
  const int64_t parts = (x.n + kInputsPerTask - 1) / kInputsPerTask;
  const int64_t blocks = (num_rows + kRows - 1) / kRows;
  const int64_t inputs_each = std::min(kInputsPerTask, x.n);
  const cpu::Int8Weight* int8 = Int8Of(weight);
  ForBlocks(
      blocks * parts, kRows * int64_t{weight.cols} * (inputs_each + 2),
      ValueBytes(weight.dtype, kRows, weight.cols) / parts, /*group=*/0,
      [&](int64_t task, int thread) {
        const int first_row = static_cast<int>(task / parts) * kRows;
        const int count = std::min(kRows, num_rows - first_row);
        const int64_t begin = task % parts * kInputsPerTask;
        const int64_t n = std::min(kInputsPerTask, x.n - begin);
        const cpu::RowRange a = {&weight, row + first_row, std::min(cpu::kRowBlock, count), int8};
        cpu::RowRange b;
        if (count > cpu::kRowBlock) {
          b = {&weight, a.row + cpu::kRowBlock, count - cpu::kRowBlock, int8};
        }
        MultiplyRows(a, b, x.Part(begin, n), thread, [&](int64_t first, int num, float* sums) {
          for (int i = 0; i < num; ++i, sums += cpu::kSumStride) {
            float* to = out.row(begin + first + i).data() + row + first_row;
            if (round) cpu::RoundBf16({sums, cpu::kSumStride}, sums);
            std::copy_n(sums, count, to);
          }
        });
      });
}

void CpuBackend::Multiply(const cpu::InputRows& x, const WeightView& weight, bool round,
                          TensorView<float> out) {
  MultiplySlice(x, weight, 0, weight.rows, round, out);
}

Status CpuBackend::DoLinear(const LinearArgs& args) {
  FATHOM_RETURN_IF_ERROR(Fits("linear: rows", args.x.dim(0), scratch_->limits.max_rows));
  FATHOM_RETURN_IF_ERROR(Fits("linear: columns", args.x.dim(1), scratch_->limits.max_cols));
  cpu::InputRows x;
  InputForm prepared{};
  for (const LinearOutput* y : {&args.first, &args.second}) {
    if (y->weight.empty()) continue;
    const InputForm form = FormOf(y->weight);
    if (y == &args.first || form != prepared) x = PrepareInput(args.x, form);
    prepared = form;
    Multiply(x, y->weight, args.round_output && official(), y->out);
  }
  return OkStatus();
}

}  // namespace fathom
