#include "backend/cpu/products.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace fathom::cpu {
namespace {

// Columns of two FP4 panels that stay in the L1 cache, with the inputs' bytes.
constexpr int64_t kFp4Block = 512;
constexpr int64_t kInt8Block = 512;  // the same for int8

// Rows of panel `p` of a call: panels of `lanes` rows lie side by side in the sums.
RowRange PanelRows(const RowRange& a, const RowRange& b, int p, int lanes) {
  const int column = p * lanes;
  const RowRange& whole = column < kRowBlock || b.weight == nullptr ? a : b;
  const int offset = std::min(column % kRowBlock, whole.count - 1);
  return {whole.weight, whole.row + offset, std::min(lanes, whole.count - offset), whole.int8};
}

void MultiplyFp4(const RowRange& a, const RowRange& b, const InputRows& x, float* scratch,
                 float* sums) {
  const ByteKernels& kernels = ChosenByteKernels();
  const int lanes = kernels.lanes;
  const int64_t cols = a.weight->cols;
  const ByteInputs inputs = {x.bytes, static_cast<int>(x.n), cols,
                             x.byte_form == ByteForm::kDigits};
  if (inputs.n <= kernels.direct_inputs) {
    for (const RowRange* rows : {&a, &b}) {
      if (rows->weight == nullptr) break;
      kernels.multiply_fp4_rows(
          static_cast<const uint8_t*>(rows->weight->data) + rows->row * (cols / 2),
          rows->weight->scale + rows->row * (cols / kFp4Group), rows->count,
          /*ahead=*/kRowBlock * (cols / 2), inputs, sums + (rows == &a ? 0 : kRowBlock),
          kSumStride);
    }
    return;
  }
  std::memset(sums, 0, static_cast<size_t>(x.n * kSumStride) * sizeof(float));
  float* scales[2] = {scratch, scratch + kFp4Block / kFp4Group * kMaxLanes};
  auto* codes = reinterpret_cast<uint8_t*>(scratch + 2 * (kFp4Block / kFp4Group) * kMaxLanes);
  const PanelPair pair = {{codes, codes + kFp4Block * kMaxLanes}, {scales[0], scales[1]}};
  const int panels = (b.weight == nullptr ? 1 : 2) * kRowBlock / lanes;
  for (int p = 0; p < panels; p += 2) {
    for (int64_t begin = 0; begin < cols; begin += kFp4Block) {
      const int64_t count = std::min(kFp4Block, cols - begin);
      for (int half = 0; half < 2; ++half) {
        const RowRange rows = PanelRows(a, b, p + half, lanes);
        const WeightView& w = *rows.weight;
        kernels.pack_fp4(static_cast<const uint8_t*>(w.data) + rows.row * (cols / 2),
                         w.scale + rows.row * (cols / kFp4Group), cols, rows.count, begin, count,
                         /*ahead=*/kRowBlock * (cols / 2), codes + half * kFp4Block * kMaxLanes,
                         scales[half]);
      }
      kernels.multiply_fp4(pair, inputs, begin / kFp4Group, count / kFp4Group, sums + p * lanes,
                           kSumStride);
    }
  }
}

void MultiplyInt8(const RowRange& a, const RowRange& b, const InputRows& x, float* sums) {
  const ByteKernels& kernels = ChosenByteKernels();
  const int lanes = kernels.lanes;
  const int64_t cols = a.weight->cols;
  std::memset(sums, 0, static_cast<size_t>(x.n * kSumStride) * sizeof(float));
  const ByteInputs inputs = {x.bytes, static_cast<int>(x.n), cols, /*digits=*/false};
  const int panels = (b.weight == nullptr ? 1 : 2) * kRowBlock / lanes;
  for (int p = 0; p < panels; p += 2) {
    const RowRange rows[2] = {PanelRows(a, b, p, lanes), PanelRows(a, b, p + 1, lanes)};
    for (int64_t begin = 0; begin < cols; begin += kInt8Block) {
      PanelPair pair;
      for (int half = 0; half < 2; ++half) {
        // Missing rows are those of the last whole panel.
        const int row = rows[half].row / lanes * lanes;
        pair.codes[half] = rows[half].int8->codes(row) + begin * lanes;
        pair.scales[half] = rows[half].int8->scales(row) + begin / kInt8Group * lanes;
      }
      kernels.multiply_int8(pair, inputs, begin / kInt8Group,
                            std::min(kInt8Block, cols - begin) / kInt8Group, sums + p * lanes,
                            kSumStride);
    }
  }
}

void MultiplyPanels(const RowRange& a, const RowRange& b, const InputRows& x, float* scratch,
                    float* sums) {
  const int lanes = PanelLanes();
  const int64_t cols = a.weight->cols;
  float* panel = scratch;
  float* rest = scratch + PanelSize(cols);
  const int panels = (b.weight == nullptr ? 1 : 2) * kRowBlock / lanes;
  for (int p = 0; p < panels; p += 2) {
    for (int half = 0; half < 2; ++half) {
      const RowRange rows = PanelRows(a, b, p + half, lanes);
      PackPanel(*rows.weight, rows.row, rows.count, rest, panel + half * lanes);
    }
    DotPanel(panel, cols, x.permuted, static_cast<int>(x.n), sums + p * lanes, kSumStride);
  }
}

}  // namespace

int64_t ProductScratch(int64_t cols) {
  const int64_t padded = (cols + kMaxLanes - 1) / kMaxLanes * kMaxLanes;
  // Two panels with a step between sums, and rows that need decoding.
  const int64_t floats = 3 * kMaxLanes * padded + 2 * kMaxLanes * kMaxLanes;
  const int64_t bytes =
      2 * (kFp4Block / kFp4Group) * kMaxLanes + 2 * kFp4Block * kMaxLanes / int64_t{sizeof(float)};
  return std::max(floats, bytes);
}

void Multiply(const RowRange& a, const RowRange& b, const InputRows& x, float* scratch,
              float* sums) {
  FATHOM_DCHECK(x.n <= kSumInputs, "inputs of one product");
  if (x.bytes != nullptr && x.byte_form == ByteForm::kInt8Dense) {
    MultiplyInt8(a, b, x, sums);
  } else if (x.bytes != nullptr) {
    MultiplyFp4(a, b, x, scratch, sums);
  } else if (x.permuted != nullptr) {
    MultiplyPanels(a, b, x, scratch, sums);
  } else {
    const int n = static_cast<int>(x.n);
    DotStored(*a.weight, a.row, a.count, x.floats, n, scratch, sums, kSumStride);
    if (b.weight == nullptr) return;
    DotStored(*b.weight, b.row, b.count, x.floats, n, scratch, sums + kRowBlock, kSumStride);
  }
}

}  // namespace fathom::cpu
