#include "backend/plugin/convert.h"

#include "base/check.h"

namespace fathom::plugin {
namespace {

static_assert(kNumCacheKinds == FATHOM_NUM_KINDS);
static_assert(kNumCacheClasses == FATHOM_NUM_CLASSES);
// Pages and tables are arrays by kind and class.
static_assert(static_cast<int>(CacheKind::kSwaKv) == FATHOM_SWA_KV);
static_assert(static_cast<int>(CacheKind::kC4Kv) == FATHOM_C4_KV);
static_assert(static_cast<int>(CacheKind::kC128Kv) == FATHOM_C128_KV);
static_assert(static_cast<int>(CacheKind::kC4IndexKeys) == FATHOM_C4_INDEX_KEYS);
static_assert(static_cast<int>(CacheKind::kC4State) == FATHOM_C4_STATE);
static_assert(static_cast<int>(CacheKind::kC128State) == FATHOM_C128_STATE);
static_assert(static_cast<int>(CacheKind::kC4IndexState) == FATHOM_C4_INDEX_STATE);
static_assert(static_cast<int>(CacheClass::kFull) == FATHOM_CLASS_FULL);
static_assert(static_cast<int>(CacheClass::kSwa) == FATHOM_CLASS_SWA);
static_assert(static_cast<int>(CacheClass::kState4) == FATHOM_CLASS_STATE4);
static_assert(static_cast<int>(CacheClass::kState128) == FATHOM_CLASS_STATE128);

int32_t ToC(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
      return FATHOM_F8E4M3;
    case DType::kI8:
      return FATHOM_E2M1;
    case DType::kBF16:
      return FATHOM_BF16;
    case DType::kF32:
      return FATHOM_F32;
    default:
      FATHOM_CHECK(false, "weights are fp8, fp4, bf16 or fp32");
  }
  return -1;
}

}  // namespace

FathomWeight ToC(const WeightView& weight) {
  if (weight.empty()) return {};
  return {weight.data, weight.scale, weight.rows, weight.cols, ToC(weight.dtype), 0};
}

FathomExpert ToC(const ExpertWeights& expert) {
  return {ToC(expert.w1), ToC(expert.w2), ToC(expert.w3)};
}

int32_t ToC(EntryEncoding encoding) {
  switch (encoding) {
    case EntryEncoding::kF32:
      return FATHOM_ENTRY_F32;
    case EntryEncoding::kE4m3Rope:
      return FATHOM_ENTRY_E4M3_ROPE;
    case EntryEncoding::kE2m1:
      return FATHOM_ENTRY_E2M1;
    case EntryEncoding::kBf16Rope:
      return FATHOM_ENTRY_BF16_ROPE;
    case EntryEncoding::kBf16:
      return FATHOM_ENTRY_BF16;
    case EntryEncoding::kE4m3Scaled:
      return FATHOM_ENTRY_E4M3_SCALED;
  }
  return -1;
}

int32_t ToC(CacheKind kind) { return static_cast<int32_t>(kind); }

FathomPages ToC(const PageView& pages) {
  if (pages.empty()) return {};
  const PageFormat& format = pages.format;
  return {pages.base, pages.block_stride, ToC(format.encoding),
          format.dim, format.rope_dim,    format.entries_per_page};
}

const FathomStepPlan* PlanCopy::Set(const StepPlan& plan) {
  sequences_.clear();
  for (const SequenceRows& rows : plan.sequences) {
    sequences_.push_back({rows.first_row, rows.num_rows, rows.start});
  }
  pages_.clear();
  for (const LayerPages& layer : plan.pages) {
    for (const PageView& pages : layer) pages_.push_back(ToC(pages));
  }
  plan_ = Sized<FathomStepPlan>();
  plan_.token_ids = plan.token_ids.data();
  plan_.positions = plan.positions.data();
  plan_.num_rows = plan.num_rows();
  plan_.sequences = sequences_.data();
  plan_.num_sequences = static_cast<int64_t>(sequences_.size());
  for (size_t c = 0; c < plan.tables.size(); ++c) {
    tables_[c].clear();
    for (const BlockTable& table : plan.tables[c]) {
      tables_[c].push_back({table.blocks, table.num_blocks, table.first});
    }
    // A class without a table for every sequence is one that no operation of the step uses.
    const bool used = tables_[c].size() == sequences_.size();
    plan_.tables[c] = used ? tables_[c].data() : nullptr;
  }
  plan_.pages = pages_.data();
  plan_.num_layers = static_cast<int64_t>(plan.pages.size());
  plan_.logits_rows = plan.logits_rows.data();
  plan_.num_logits_rows = static_cast<int64_t>(plan.logits_rows.size());
  return &plan_;
}

}  // namespace fathom::plugin
