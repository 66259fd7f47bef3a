// See unfused.h and backend/ops/q_norm_rope_kv_insert.h.
//
// The operations of the official code (inference/model.py: Attention.forward, RMSNorm.forward,
// apply_rotary_emb), one kernel each where a framework that runs them one by one has a kernel:
//
//   norm of q, 5:         square, mean, + eps, rsqrt, product in place
//   rotation of q, 3:     cast of the slice to fp32, complex product, copy back into the slice
//   norm of kv, 8:        cast to fp32, square, mean, + eps, rsqrt, product, product with the
//                         weight, cast to bf16
//   rotation of kv, 3:    as of q
//   scales of kv, 8:      cast of the slice to fp32, magnitude, largest of each 64, lower bound,
//                         product with 1 / 448; the power of two above it, on the bits: + mantissa
//                         of ones, shift right (the exponent), shift left (the scale)
//   codes of kv, 4:       quotient, clamp, cast to e4m3; exponents cast to bytes
//   values of codes, 3:   cast to fp32, product with the scale, copy back into the slice
//   entries of kv, 3:     indexed writes of codes, rotated channels and scales
//
// Views, slices and broadcasts launch nothing and are none: pairs as complex numbers, groups of 64,
// the bits of floats, one factor for many elements. Nor is what is made once for all layers or once
// for all steps: rotations, places of entries, the zeros behind a row's scales. An operation's
// rounding to its result's type is its own work. The exponents take three kernels as log2, ceil and
// exp2 would, which would not give the same bits next to powers of two.
//
// The official code itself calls a kernel written for it where scales, codes and values of kv stand
// here, and copies the values to a cache of bf16: 21 launches in all. The chain is what there is
// without that kernel and with the entries that pages hold.
//
// Activations of this engine are floats that hold bf16 values, on both sides of the comparison:
// tensors that a framework would have in bf16 are floats here, too.
#include <algorithm>
#include <memory>
#include <vector>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/page_codec.cuh"
#include "backend/cuda/unfused/access.h"
#include "backend/cuda/unfused/elementwise.cuh"
#include "backend/cuda/unfused/entries.h"
#include "backend/cuda/unfused/unfused.h"

namespace fathom::cuda {
namespace {

using namespace element;  // NOLINT(google-build-using-namespace): the words of the chain below

// Where a part of each entry lies in its page.
struct Part {
  int64_t offset = 0;       // of entry 0
  int64_t entry_bytes = 0;  // from one entry to the next

  __device__ std::byte* Of(const EntryRef& place) const {
    return place.page + offset + entry_bytes * place.row;
  }
};

// A thread per word; rows without a page are left out.
template <typename Word>
__global__ void __launch_bounds__(kBlock)
    InsertBytesKernel(const uint8_t* rows, unsigned words_per_row, unsigned words, Part part,
                      const EntryRef* places) {
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= words) return;
  const EntryRef place = places[i / words_per_row];
  if (place.page == nullptr) return;
  reinterpret_cast<Word*>(part.Of(place))[i % words_per_row] =
      reinterpret_cast<const Word*>(rows)[i];
}

// A thread per channel. The values are bf16 ones.
__global__ void __launch_bounds__(kBlock)
    InsertBf16Kernel(Slice<const float> rows, unsigned count, Part part, const EntryRef* places) {
  const unsigned i = blockIdx.x * kBlock + threadIdx.x;
  if (i >= count) return;
  const auto width = static_cast<unsigned>(rows.width);
  const EntryRef place = places[i / width];
  if (place.page == nullptr) return;
  const unsigned column = i % width;
  const uint16_t value = ToBf16(rows.data[int64_t{i / width} * rows.stride + column]);
  std::byte* const to = part.Of(place) + 2 * column;
  if (reinterpret_cast<uintptr_t>(to) % sizeof(value) == 0) {
    *reinterpret_cast<uint16_t*>(to) = value;
  } else {
    StoreU16(to, value);
  }
}

class QNormRopeKvInsertElementwise final : public Sequence {
 public:
  QNormRopeKvInsertElementwise(CudaBackend& backend, const QNormRopeKvInsertArgs& args)
      : args_(args), memory_(backend), chain_(UnfusedAccess::StateOf(backend).stream) {}

  Status Make() {
    FATHOM_ASSIGN_OR_RETURN(const std::vector<EntryRef> places, WindowPlaces(args_));
    FATHOM_ASSIGN_OR_RETURN(places_, memory_.Put(places));
    const int64_t rows = args_.q.dim(0), heads = rows * args_.q.dim(1);
    FATHOM_RETURN_IF_ERROR(AddQueries(heads));
    // In the official code kv is rotated and rounded where the norm has put it; here that is
    // step_kv.
    FATHOM_ASSIGN_OR_RETURN(float* const a, memory_.Room<float>(args_.kv.size()));
    FATHOM_ASSIGN_OR_RETURN(float* const b, memory_.Room<float>(args_.kv.size()));
    FATHOM_RETURN_IF_ERROR(AddNormOfKv(rows, a, b));
    AddRotation(args_.step_kv.data(), rows, 1, a, b);
    return AddEntries(rows, a, b);
  }

  Status Run() override { return chain_.Run(); }
  [[nodiscard]] int num_kernels() const override { return chain_.num_kernels(); }

 private:
  Status AddQueries(int64_t heads) {
    const auto dim = static_cast<int>(args_.q.dim(2));
    // The squares, and behind them, where they are used up, what is rotated: twice, at most as
    // many each.
    const int64_t rotated = heads * 2 * args_.cos_sin.dim(1);
    FATHOM_ASSIGN_OR_RETURN(float* const room,
                            memory_.Room<float>(std::max(heads * dim, 2 * rotated)));
    FATHOM_ASSIGN_OR_RETURN(float* const mean, memory_.Room<float>(heads));
    FATHOM_ASSIGN_OR_RETURN(float* const inverse, memory_.Room<float>(heads));
    const Slice<float> q = Whole(args_.q.data(), heads, dim);
    chain_.Elements(All(q.data, heads * dim), All(room, heads * dim), InBf16{Square{}});
    chain_.MeanOfHeads(room, heads, dim, mean);
    chain_.Elements(All(mean, heads), All(inverse, heads), InBf16{Plus{args_.norm_eps}});
    chain_.Elements(All(inverse, heads), All(mean, heads), InBf16{InverseRoot{}});
    chain_.Elements(q, q, InBf16{TimesOfRow{mean}});
    AddRotation(q.data, heads, args_.q.dim(1), room, room + rotated);
    return OkStatus();
  }

  Status AddNormOfKv(int64_t rows, float* a, float* b) {
    const auto dim = static_cast<int>(args_.q.dim(2));
    FATHOM_ASSIGN_OR_RETURN(float* const mean, memory_.Room<float>(rows));
    FATHOM_ASSIGN_OR_RETURN(float* const inverse, memory_.Room<float>(rows));
    const Slice<float> all_a = All(a, rows * dim), all_b = All(b, rows * dim);
    chain_.Elements(All(args_.kv.data(), rows * dim), all_a, Same{});
    chain_.Elements(all_a, all_b, Square{});
    chain_.MeanOfRows(b, rows, dim, mean);
    chain_.Elements(All(mean, rows), All(inverse, rows), Plus{args_.norm_eps});
    chain_.Elements(All(inverse, rows), All(mean, rows), InverseRoot{});
    chain_.Elements(Whole(a, rows, dim), Whole(b, rows, dim), TimesOfRow{mean});
    chain_.Elements(Whole(b, rows, dim), Whole(a, rows, dim),
                    TimesOfColumn{args_.kv_norm_weight.data()});
    chain_.Elements(all_a, All(args_.step_kv.data(), rows * dim), InBf16{Same{}});
    return OkStatus();
  }

  // Of rows of q or kv, `share` in a row alike; the last channels of each.
  void AddRotation(float* x, int64_t rows, int64_t share, float* in, float* out) {
    const int64_t dim = args_.q.dim(2), pairs = args_.cos_sin.dim(1);
    const Slice<float> slice = {x + dim - 2 * pairs, rows, 2 * pairs, dim};
    chain_.Elements(slice, Whole(in, rows, 2 * pairs), Same{});
    chain_.ComplexProduct(in, args_.cos_sin.data(), rows, pairs, share, out);
    chain_.Elements(Whole(out, rows, 2 * pairs), slice, InBf16{Same{}});
  }

  Status AddEntries(int64_t rows, float* a, float* b) {
    const PageFormat& f = args_.swa.format;
    const int64_t nope = f.dim - f.rope_dim, row_groups = nope / kE4m3Group;
    const int64_t groups = rows * row_groups, count = rows * nope;
    FATHOM_ASSIGN_OR_RETURN(float* const largest, memory_.Room<float>(groups));
    FATHOM_ASSIGN_OR_RETURN(float* const bounded, memory_.Room<float>(groups));
    FATHOM_ASSIGN_OR_RETURN(uint8_t* const codes, memory_.Room<uint8_t>(count));
    FATHOM_ASSIGN_OR_RETURN(
        uint8_t* const bytes,
        memory_.Put(std::vector<uint8_t>(static_cast<size_t>(rows * f.scale_bytes()))));
    auto* const exponents = reinterpret_cast<uint32_t*>(largest);
    auto* const scales = reinterpret_cast<uint32_t*>(bounded);
    const auto* const scale_values = reinterpret_cast<const float*>(scales);
    const Slice<float> kv = {args_.step_kv.data(), rows, nope, f.dim};
    const Slice<float> grouped_a = Whole(a, groups, kE4m3Group),
                       grouped_b = Whole(b, groups, kE4m3Group);

    chain_.Elements(kv, Whole(a, rows, nope), Same{});
    chain_.Elements(All(a, count), All(b, count), Absolute{});
    chain_.Largest(b, groups, kE4m3Group, largest);
    chain_.Elements(All(largest, groups), All(bounded, groups), AtLeast{kE4m3AmaxFloor});
    chain_.Elements(All(bounded, groups), All(largest, groups), Times{1.0f / kE4m3Max});
    chain_.Elements(All(exponents, groups), All(scales, groups), PlusBits{0x7FFFFF});
    chain_.Elements(All(scales, groups), All(exponents, groups), RightBits{23});
    chain_.Elements(All(exponents, groups), All(scales, groups), LeftBits{23});

    chain_.Elements(grouped_a, grouped_b, ByOfRow{scale_values});
    chain_.Elements(All(b, count), All(a, count), Within{kE4m3Max});
    chain_.Elements(All(a, count), All(codes, count), ToCode{});
    chain_.Elements(Whole(exponents, rows, row_groups),
                    Slice<uint8_t>{bytes, rows, row_groups, f.scale_bytes()}, ToByte{});

    chain_.Elements(All(codes, count), All(a, count), FromCode{});
    chain_.Elements(grouped_a, grouped_b, TimesOfRow{scale_values});
    chain_.Elements(Whole(b, rows, nope), kv, InBf16{Same{}});

    AddInsertion(codes, rows, nope, {0, f.value_bytes()});
    const Slice<const float> rotated = {args_.step_kv.data() + nope, rows, f.rope_dim, f.dim};
    chain_.Add(InsertBf16Kernel, Blocks(rows * f.rope_dim, kBlock), rotated,
               static_cast<unsigned>(rows * f.rope_dim), Part{nope, f.value_bytes()}, places_);
    AddInsertion(bytes, rows, f.scale_bytes(), {f.scale_offset(), f.scale_bytes()});
    return OkStatus();
  }

  void AddInsertion(const uint8_t* bytes, int64_t rows, int64_t row_bytes, const Part& part) {
    const auto whole = [](int64_t value) { return value % 4 == 0; };
    const int64_t count = rows * row_bytes;
    if (whole(row_bytes) && whole(part.offset) && whole(part.entry_bytes) &&
        whole(args_.swa.block_stride) &&
        whole(static_cast<int64_t>(reinterpret_cast<uintptr_t>(args_.swa.base)))) {
      chain_.Add(InsertBytesKernel<uint32_t>, Blocks(count / 4, kBlock), bytes,
                 static_cast<unsigned>(row_bytes / 4), static_cast<unsigned>(count / 4), part,
                 places_);
    } else {
      chain_.Add(InsertBytesKernel<uint8_t>, Blocks(count, kBlock), bytes,
                 static_cast<unsigned>(row_bytes), static_cast<unsigned>(count), part, places_);
    }
  }

  template <typename T>
  static Slice<T> All(T* data, int64_t count) {
    return Whole(data, 1, count);
  }

  const QNormRopeKvInsertArgs args_;
  SequenceMemory memory_;
  const EntryRef* places_ = nullptr;  // by row
  Chain chain_;
};

}  // namespace

Result<std::unique_ptr<Sequence>> MakeElementwise(CudaBackend& backend,
                                                  const QNormRopeKvInsertArgs& args) {
  FATHOM_RETURN_IF_ERROR(Check(args));
  FATHOM_RETURN_IF_ERROR(UnfusedAccess::StateOf(backend).Enter());
  auto sequence = std::make_unique<QNormRopeKvInsertElementwise>(backend, args);
  FATHOM_RETURN_IF_ERROR(sequence->Make());
  return std::unique_ptr<Sequence>(std::move(sequence));
}

}  // namespace fathom::cuda
