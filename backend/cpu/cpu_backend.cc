#include "backend/cpu/cpu_backend.h"

#include <cstdlib>
#include <new>
#include <string>

#include "backend/cpu/scratch.h"
#include "backend/memory_layout.h"

namespace fathom {

CpuBackend::CpuBackend(Numerics numerics, ThreadPool& pool, const CpuOptions& options)
    : Backend(numerics), pool_(pool), options_(options), scratch_(std::make_unique<Scratch>()) {}

CpuBackend::CpuBackend(Numerics numerics, int num_threads, const CpuOptions& options)
    : Backend(numerics),
      own_pool_(std::make_unique<ThreadPool>(num_threads)),
      pool_(*own_pool_),
      options_(options),
      scratch_(std::make_unique<Scratch>()) {}

CpuBackend::~CpuBackend() = default;

Status CpuBackend::Prepare(const BackendLimits& limits) {
  FATHOM_RETURN_IF_ERROR(CheckLimits(limits));
  return scratch_->Allocate(limits, pool_.num_threads());
}

Status CpuBackend::AddWeight(const WeightView& weight) {
  if (!options_.int8_dense || !official() || !cpu::Int8Weight::Takes(weight)) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(int8_weights_[weight.data], cpu::Int8Weight::Make(weight, pool_));
  return OkStatus();
}

namespace {

constexpr int64_t kAlignment = 64;  // of parts: a cache line

}  // namespace

void CpuBackend::Scratch::Free::operator()(std::byte* p) const { std::free(p); }

Status CpuBackend::Scratch::Allocate(const BackendLimits& new_limits, int num_threads) {
  const BackendLimits& l = new_limits;
  limits = l;
  max_entries = l.max_positions / 4 + 1;
  score_capacity = std::max<int64_t>(max_entries, int64_t{1} << 20);

  // First pass: offsets; second pass: pointers.
  MemoryLayout sum(kAlignment);
  const auto place = [&](auto& array, int64_t parts, int64_t count) {
    using T = std::remove_pointer_t<decltype(array.data())>;
    constexpr int64_t kLine = kAlignment / static_cast<int64_t>(sizeof(T));
    array.stride_ = (count + kLine - 1) / kLine * kLine;
    const int64_t offset = sum.Add<T>(parts, array.stride_);
    array.data_ = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_.get() + offset);
  };
  const auto place_all = [&] {
    const int64_t items = int64_t{l.max_rows} * (l.max_experts_per_token + 1);
    const int64_t expert_cols = std::max(l.max_cols, l.max_expert_width);
    // Whole vectors, as PermuteInput wants them, and one more: rows a power of two apart would
    // share the few places that the L1 cache has for such addresses.
    const auto padded = [](int64_t cols) {
      return (cols + cpu::kMaxLanes - 1) / cpu::kMaxLanes * cpu::kMaxLanes + cpu::kMaxLanes;
    };
    sum = MemoryLayout(kAlignment);
    place(float_inputs, l.max_rows, padded(l.max_cols));
    place(e4m3_inputs, l.max_rows, padded(l.max_cols));
    place(byte_inputs, l.max_rows, padded(l.max_cols));
    place(float_rows, 1, l.max_rows);
    place(e4m3_rows, 1, l.max_rows);
    place(byte_rows, 1, l.max_rows);
    place(int8_inputs, l.max_rows, padded(l.max_cols));
    place(int8_rows, 1, l.max_rows);
    place(head_inputs, l.max_rows, l.max_cols);
    place(mixes, l.max_rows, kMixStride);
    place(router_scores, l.max_rows, l.max_experts);
    place(moe_hidden, items, padded(l.max_expert_width));
    place(item_rows, 1, items);
    place(item_bytes, 1, items);
    place(moe_weights, 1, items);
    place(moe_tokens, 1, items);
    place(moe_begin, 1, int64_t{l.max_experts} + 2);
    place(moe_active, 1, int64_t{l.max_experts} + 1);
    place(moe_by_size, 1, int64_t{l.max_experts} + 1);
    place(index_queries, kIndexRows, int64_t{l.max_heads} * l.max_head_dim);
    place(index_weights, kIndexRows, l.max_heads);
    place(index_scores, 1, score_capacity);
    place(thread_products, num_threads, cpu::ProductScratch(expert_cols));
    place(thread_sums, num_threads, cpu::kSumInputs * cpu::kSumStride);
    place(thread_row, num_threads, padded(expert_cols));
    place(thread_window, num_threads, int64_t{kWindowRows} * l.max_head_dim);
    place(thread_tile, num_threads, int64_t{cpu::kTile} * l.max_head_dim);
    place(thread_softmax, num_threads, int64_t{2} * kQueryBlock * l.max_heads);
    const int64_t index_values = int64_t{l.max_heads} * l.max_head_dim;
    place(index_slots, kIndexRows, index_values);
    place(index_heads, 1, int64_t{kIndexRows} * l.max_heads);
    place(thread_codes, num_threads, int64_t{2} * cpu::kMaxLanes * l.max_head_dim);
    place(thread_code_scales, num_threads,
          int64_t{2} * cpu::kMaxLanes * l.max_head_dim / cpu::kFp4Group);
    // Rows may be read to the end of the next one.
    place(thread_dots, num_threads, (int64_t{l.max_heads} + 1) * 2 * cpu::kMaxLanes);
    place(thread_list, num_threads, cpu::TopkListSize(max_entries));
    place(thread_keys, num_threads, cpu::TopkListSize(max_entries));
  };
  memory_.reset();
  place_all();
  if (!sum.overflow()) {
    memory_.reset(static_cast<std::byte*>(
        std::aligned_alloc(size_t{kAlignment}, static_cast<size_t>(sum.bytes()))));
  }
  if (memory_ == nullptr) {
    return OutOfMemory("cpu backend: scratch memory of " + std::to_string(sum.bytes()) + " bytes");
  }
  place_all();
  return OkStatus();
}

}  // namespace fathom
