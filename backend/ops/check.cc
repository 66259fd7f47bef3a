// Argument checks of all operations: shapes that disagree and blocks that are missing become
// kInvalidArgument before a backend touches memory.
#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>

#include "backend/backend.h"

namespace fathom {
namespace {

// Collects the first disagreement of one operation.
class ShapeCheck {
 public:
  explicit ShapeCheck(const char* op) : op_(op) {}

  template <typename T>
  ShapeCheck& Shape(const char* what, const TensorView<T>& view,
                    std::initializer_list<int64_t> want) {
    int i = 0;
    bool same = static_cast<int>(want.size()) == view.rank();
    for (int64_t d : want) same = same && view.dim(i++) == d;
    if (!same || (view.size() > 0 && view.data() == nullptr)) {
      Fail(std::string(what) + ": shape " +
           Text({view.shape().data(), view.shape().data() + view.rank()}) + ", expected " +
           Text(want));
    }
    return *this;
  }
  // A matrix of activations, of any size.
  template <typename T>
  ShapeCheck& Rows(const char* what, const TensorView<T>& view) {
    return Shape(what, view, {view.dim(0), view.dim(1)});
  }
  ShapeCheck& Matrix(const char* what, const WeightView& w, int64_t rows, int64_t cols) {
    if (w.empty() || w.rows != rows || w.cols != cols) {
      Fail(std::string(what) + ": " + std::to_string(w.rows) + " x " + std::to_string(w.cols) +
           ", expected " + std::to_string(rows) + " x " + std::to_string(cols));
    } else if (w.quantised() && w.scale == nullptr) {
      Fail(std::string(what) + ": quantised weight without scales");
    } else if (w.quantised() && w.cols % 128 != 0) {
      Fail(std::string(what) + ": quantised weights need a multiple of 128 columns");
    }
    return *this;
  }
  ShapeCheck& That(bool condition, const char* what) {
    if (!condition) Fail(what);
    return *this;
  }
  // Every entry in [begin, end) of the plan's sequence `s` can be located. `what` names them.
  ShapeCheck& Blocks(const char* what, const PageView& pages, const BlockTable& table, size_t s,
                     int64_t begin, int64_t end) {
    if (begin >= end || !ok()) return *this;
    const int64_t per_page = pages.format.entries_per_page;
    const int64_t last = (end - 1) / per_page - table.first;
    for (int64_t i = begin / per_page - table.first; i <= last; ++i) {
      if (i >= 0 && i < table.num_blocks && table.blocks[i] != kNoBlock) continue;
      Fail(std::string("sequence ") + std::to_string(s) + " has no block for " + what + " " +
           std::to_string(std::max(begin, (i + table.first) * per_page)) + ", needs " +
           std::to_string(begin) + " to " + std::to_string(end - 1));
      break;
    }
    return *this;
  }
  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] Status Done() const { return status_; }

 private:
  struct Dims {
    const int64_t* begin;
    const int64_t* end;
  };
  static std::string Text(Dims dims) {
    std::string text = "[";
    for (const int64_t* d = dims.begin; d != dims.end; ++d) {
      if (d != dims.begin) text += ", ";
      text += std::to_string(*d);
    }
    return text + "]";
  }
  static std::string Text(std::initializer_list<int64_t> dims) {
    return Text(Dims{dims.begin(), dims.end()});
  }
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = InvalidArgument(std::string(op_) + ": " + message);
  }
  const char* op_;
  Status status_;
};

void CheckSampleRow(const SampleRow& row, int64_t vocab, ShapeCheck& check) {
  check
      .That(row.temperature >= 0.0 && row.temperature <= std::numeric_limits<double>::max(),
            "temperature must be finite and at least 0")
      .That(row.top_p > 0.0 && row.top_p <= 1.0, "top_p must be in (0, 1]")
      .That(row.min_p >= 0.0 && row.min_p <= 1.0, "min_p must be in [0, 1]")
      .That(row.top_k >= 0, "top_k must be at least 0");
  TokenId before = -1;
  for (const TokenAdjustment& a : row.adjustments) {
    check.That(a.token > before && a.token < vocab,
               "adjustments must have ascending tokens of the vocabulary");
    before = a.token;
  }
  for (const TokenId token : row.masked) {
    check.That(token >= 0 && token < vocab, "masked token outside the vocabulary");
  }
  if (row.allowed.empty()) return;
  const int64_t words = (vocab + 63) / 64;
  if (static_cast<int64_t>(row.allowed.size()) != words) {
    check.That(false, "allowed must have a bit for every token");
    return;
  }
  check
      .That(std::any_of(row.allowed.begin(), row.allowed.end(), [](uint64_t w) { return w != 0; }),
            "allowed must hold a token")
      .That(vocab % 64 == 0 || row.allowed.back() >> (vocab % 64) == 0,
            "allowed has bits beyond the vocabulary");
}

bool TablesMatch(const StepPlan* plan, CacheKind kind) {
  return plan->TablesFor(kind).size() == plan->sequences.size();
}

// Whether the sequences' rows are rows of the step and their positions are ones.
bool SequencesFit(const StepPlan* plan) {
  return std::all_of(plan->sequences.begin(), plan->sequences.end(),
                     [plan](const SequenceRows& rows) {
                       return rows.first_row >= 0 && rows.num_rows >= 0 && rows.start >= 0 &&
                              rows.first_row <= plan->num_rows() - rows.num_rows &&
                              rows.start <= std::numeric_limits<Position>::max() - rows.num_rows;
                     });
}
constexpr const char* kSequences = "sequences must lie within the step's rows";

// Entries that the last query of a sequence may see, none without rows.
int64_t EntriesToSee(const SequenceRows& rows, int ratio) {
  return rows.num_rows == 0 ? 0 : VisibleEntries(rows.start + rows.num_rows - 1, ratio);
}

}  // namespace

Status Check(const EmbedExpandArgs& a) {
  ShapeCheck check("embed_expand");
  check.Shape("hc", a.hc, {static_cast<int64_t>(a.token_ids.size()), a.hc.dim(1), a.table.cols})
      .That(a.table.dtype == DType::kBF16, "table must be bf16")
      .Matrix("table", a.table, a.table.rows, a.table.cols);
  for (TokenId id : a.token_ids) {
    if (id < 0 || id >= a.table.rows) {
      return InvalidArgument("embed_expand: token id " + std::to_string(id) +
                             " outside the vocabulary of " + std::to_string(a.table.rows));
    }
  }
  return check.Done();
}

Status Check(const HcPreNormArgs& a) {
  const int64_t n = a.hc.dim(0), hc = a.hc.dim(1), d = a.hc.dim(2), mixes = (2 + hc) * hc;
  return ShapeCheck("hc_pre_norm")
      .That(a.hc.rank() == 3 && hc >= 1 && hc <= kMaxHcMult, "hc must be [n, hc_mult, D]")
      .Shape("hc", a.hc, {n, hc, d})
      .Shape("fn", a.fn, {mixes, hc * d})
      .Shape("base", a.base, {mixes})
      .Shape("scale", a.scale, {3})
      .Shape("norm_weight", a.norm_weight, {d})
      .Shape("x", a.x, {n, d})
      .Shape("post", a.post, {n, hc})
      .Shape("comb", a.comb, {n, hc, hc})
      .That(a.sinkhorn_iters >= 1, "sinkhorn_iters must be at least 1")
      .Done();
}

Status Check(const HcPostArgs& a) {
  const int64_t n = a.hc.dim(0), hc = a.hc.dim(1), d = a.hc.dim(2);
  return ShapeCheck("hc_post")
      .That(a.hc.rank() == 3 && hc <= kMaxHcMult, "hc must be [n, hc_mult, D]")
      .Shape("hc", a.hc, {n, hc, d})
      .Shape("out", a.out, {n, d})
      .Shape("post", a.post, {n, hc})
      .Shape("comb", a.comb, {n, hc, hc})
      .Done();
}

Status Check(const RmsNormArgs& a) {
  return ShapeCheck("rms_norm")
      .Rows("x", a.x)
      .Shape("weight", a.weight, {a.x.dim(1)})
      .Shape("out", a.out, {a.x.dim(0), a.x.dim(1)})
      .Done();
}

Status Check(const LinearArgs& a) {
  const int64_t n = a.x.dim(0), k = a.x.dim(1);
  ShapeCheck check("linear");
  check.Rows("x", a.x)
      .Matrix("first", a.first.weight, a.first.weight.rows, k)
      .Shape("first.out", a.first.out, {n, a.first.weight.rows});
  if (!a.second.weight.empty()) {
    check.Matrix("second", a.second.weight, a.second.weight.rows, k)
        .Shape("second.out", a.second.out, {n, a.second.weight.rows})
        .That(a.first.weight.quantised() == a.second.weight.quantised(),
              "both weights must take the same input format");
  }
  return check.Done();
}

Status Check(const RopeTableArgs& a) {
  return ShapeCheck("rope_table")
      .Shape("frequencies", a.frequencies, {a.frequencies.dim(0)})
      .Shape("cos_sin", a.cos_sin,
             {static_cast<int64_t>(a.positions.size()), a.frequencies.dim(0), 2})
      .Done();
}

Status Check(const QNormRopeKvInsertArgs& a) {
  const int64_t n = a.q.dim(0), d = a.q.dim(2), rope = 2 * a.cos_sin.dim(1);
  ShapeCheck check("q_norm_rope_kv_insert");
  check.That(a.plan != nullptr && !a.swa.empty(), "plan and page needed");
  if (!check.ok()) return check.Done();
  // Window pages are written where there are blocks: none has to be there.
  return check.That(a.q.rank() == 3 && a.plan->num_rows() == n, "q must be [rows, H, d]")
      .That(SequencesFit(a.plan), kSequences)
      .Shape("q", a.q, {n, a.q.dim(1), d})
      .Shape("kv", a.kv, {n, d})
      .Shape("step_kv", a.step_kv, {n, d})
      .Shape("kv_norm_weight", a.kv_norm_weight, {d})
      .Shape("cos_sin", a.cos_sin, {n, rope / 2, 2})
      .That(rope <= d && a.swa.format.dim == d, "page entries must hold d values")
      .That(a.swa.format.HoldsKv() && a.swa.format.entries_per_page >= 1,
            "page format is none of KV entries")
      .That(TablesMatch(a.plan, CacheKind::kSwaKv), "one block table per sequence")
      .Done();
}

Status Check(const CompressInsertArgs& a) {
  const int64_t n = a.kv_rows.dim(0), coff = a.ratio == 4 ? 2 : 1, width = a.norm_weight.dim(0);
  ShapeCheck check("compress_insert");
  check.That(a.ratio == 4 || a.ratio == 128, "ratio must be 4 or 128")
      .That(a.plan != nullptr && !a.state.empty() && !a.out.empty(), "plan and pages needed");
  if (!check.ok()) return check.Done();
  check.That(SequencesFit(a.plan), kSequences);
  if (!check.ok()) return check.Done();
  const auto anchors = static_cast<int64_t>(a.plan->anchors[AnchorsOf(a.ratio)].size());
  int64_t entries = 0;
  for (const SequenceRows& rows : a.plan->sequences) entries += EntriesEnding(rows, a.ratio).count;
  check.That(a.plan->num_rows() == n, "one row per token of the step")
      .Shape("kv_rows", a.kv_rows, {n, coff * width})
      .Shape("score_rows", a.score_rows, {n, coff * width})
      .Shape("ape", a.ape, {a.ratio, coff * width})
      .Shape("norm_weight", a.norm_weight, {width})
      .Shape("anchor_cos_sin", a.anchor_cos_sin,
             {std::max(entries, anchors), a.anchor_cos_sin.dim(1), 2})
      .That(2 * a.anchor_cos_sin.dim(1) <= width, "anchor_cos_sin rotates more than a row")
      .That(a.state.format.dim == 2 * coff * width && a.out.format.dim == width, "page formats")
      .That(a.state.format.entries_per_page >= 1 && a.out.format.entries_per_page >= 1,
            "page formats without entries")
      .That(a.state.format.encoding == EntryEncoding::kF32, "compressor rows must be fp32")
      .That(a.index_side ? a.out.format.HoldsIndexKeys() : a.out.format.HoldsKv(),
            "page format is none of such entries")
      .That(TablesMatch(a.plan, a.state_kind) && TablesMatch(a.plan, a.out_kind),
            "one block table per sequence");
  if (!check.ok()) return check.Done();
  for (size_t s = 0; s < a.plan->sequences.size(); ++s) {
    const SequenceRows& rows = a.plan->sequences[s];
    const EndingEntries ending = EntriesEnding(rows, a.ratio);
    if (ending.count == 0) continue;
    check
        .Blocks("compressor row", a.state, a.plan->TablesFor(a.state_kind)[s], s,
                FirstRowOfEntry(ending.first, a.ratio), rows.start)
        .Blocks("entry", a.out, a.plan->TablesFor(a.out_kind)[s], s, ending.first,
                int64_t{ending.first} + ending.count);
  }
  return check.Done();
}

Status Check(const IndexerTopkArgs& a) {
  const int64_t n = a.q.dim(0), heads = a.q.dim(1), d = a.q.dim(2);
  ShapeCheck check("indexer_topk");
  check.That(a.plan != nullptr && !a.keys.empty(), "plan and pages needed");
  if (!check.ok()) return check.Done();
  check.That(a.q.rank() == 3 && a.plan->num_rows() == n, "q must be [rows, Hi, di]")
      .That(SequencesFit(a.plan), kSequences)
      .Shape("q", a.q, {n, heads, d})
      .That(d > 0 && (d & (d - 1)) == 0 && d % 32 == 0, "di must be a power of two, at least 32")
      .That(a.keys.format.dim == d, "page entries must hold di values")
      .That(a.keys.format.HoldsIndexKeys() && a.keys.format.entries_per_page >= 1,
            "page format is none of index keys")
      .Shape("head_weights", a.head_weights, {n, heads})
      .Shape("cos_sin", a.cos_sin, {n, a.cos_sin.dim(1), 2})
      .That(2 * a.cos_sin.dim(1) <= d, "cos_sin rotates more than a head")
      .That(a.topk >= 1, "topk must be at least 1")
      .Shape("entries", a.entries, {n, a.topk})
      .Shape("num_entries", a.num_entries, {n})
      .That(TablesMatch(a.plan, CacheKind::kC4IndexKeys), "one block table per sequence");
  if (!check.ok()) return check.Done();
  for (size_t s = 0; s < a.plan->sequences.size(); ++s) {
    check.Blocks("index key", a.keys, a.plan->TablesFor(CacheKind::kC4IndexKeys)[s], s, 0,
                 EntriesToSee(a.plan->sequences[s], 4));
  }
  return check.Done();
}

Status Check(const SparseAttentionArgs& a) {
  const int64_t n = a.q.dim(0), heads = a.q.dim(1), d = a.q.dim(2);
  ShapeCheck check("sparse_attention");
  check.That(a.plan != nullptr && !a.swa.empty() && a.window >= 1, "plan, pages and window needed");
  if (!check.ok()) return check.Done();
  check.That(a.q.rank() == 3 && a.plan->num_rows() == n, "q must be [rows, H, d]")
      .That(SequencesFit(a.plan), kSequences)
      .Shape("q", a.q, {n, a.q.dim(1), d})
      .Shape("step_kv", a.step_kv, {n, d})
      .That(a.swa.format.dim == d, "page entries must hold d values")
      .That(a.swa.format.HoldsKv() && a.swa.format.entries_per_page >= 1,
            "page format is none of KV entries")
      .Shape("sink", a.sink, {heads})
      .Shape("out", a.out, {n, heads, d})
      .That(TablesMatch(a.plan, CacheKind::kSwaKv), "one block table per sequence")
      .That(a.ratio >= 0, "ratio must not be negative")
      .That(a.compressed.empty() == (a.ratio == 0), "compressed pages exactly when ratio is not 0");
  if (!a.compressed.empty()) {
    check.That(a.compressed.format.dim == d, "compressed entries must hold d values")
        .That(a.compressed.format.HoldsKv() && a.compressed.format.entries_per_page >= 1,
              "format of compressed pages is none of KV entries")
        .That(TablesMatch(a.plan, a.compressed_kind), "one block table per sequence");
  }
  if (!a.entries.empty()) {
    check.Shape("entries", a.entries, {n, a.entries.dim(1)})
        .Shape("num_entries", a.num_entries, {n});
  }
  if (!check.ok()) return check.Done();
  for (size_t s = 0; s < a.plan->sequences.size(); ++s) {
    const SequenceRows& rows = a.plan->sequences[s];
    if (rows.num_rows == 0) continue;
    check.Blocks("window entry", a.swa, a.plan->TablesFor(CacheKind::kSwaKv)[s], s,
                 std::max<int64_t>(0, int64_t{rows.start} - a.window + 1), rows.start);
    if (a.compressed.empty()) continue;
    // Not only the chosen ones: those are in the device's memory.
    check.Blocks("entry", a.compressed, a.plan->TablesFor(a.compressed_kind)[s], s, 0,
                 EntriesToSee(rows, a.ratio));
  }
  return check.Done();
}

Status Check(const InverseRopeOutArgs& a) {
  const int64_t n = a.o.dim(0), heads = a.o.dim(1), d = a.o.dim(2);
  ShapeCheck check("inverse_rope_out");
  check.That(a.o.rank() == 3 && a.groups >= 1 && heads % std::max(a.groups, 1) == 0,
             "heads must divide into groups");
  if (!check.ok()) return check.Done();
  return check.Matrix("wo_a", a.wo_a, a.out.dim(1), heads / a.groups * d)
      .Shape("o", a.o, {n, heads, d})
      .Shape("cos_sin", a.cos_sin, {n, a.cos_sin.dim(1), 2})
      .That(2 * a.cos_sin.dim(1) <= d, "cos_sin rotates more than a head")
      .Shape("out", a.out, {n, a.out.dim(1)})
      .That(a.out.dim(1) % a.groups == 0, "outputs must divide into groups")
      .That(!a.quantise_input || a.wo_a.quantised(),
            "quantise_input: wo_a is neither fp8 nor fp4, whose inputs are rounded to e4m3")
      .Done();
}

Status Check(const RouteArgs& a) {
  const int64_t n = a.x.dim(0), k = a.experts.dim(1);
  ShapeCheck check("route");
  check.Rows("x", a.x)
      .Matrix("gate", a.gate, a.gate.rows, a.x.dim(1))
      .Shape("experts", a.experts, {n, k})
      .Shape("weights", a.weights, {n, k})
      .That(k >= 1 && k <= kMaxExpertsPerToken && k <= a.gate.rows,
            "experts per token out of range");
  if (a.hash_table.empty()) {
    check.Shape("bias", a.bias, {a.gate.rows});
  } else {
    check.Shape("hash_table", a.hash_table, {a.hash_table.dim(0), k})
        .That(static_cast<int64_t>(a.token_ids.size()) == n, "hash routing needs token ids");
    for (TokenId id : a.token_ids)
      check.That(id >= 0 && id < a.hash_table.dim(0), "token id outside hash table");
  }
  return check.Done();
}

Status Check(const MoeArgs& a) {
  const int64_t n = a.x.dim(0), d = a.x.dim(1);
  ShapeCheck check("moe");
  check.That(!a.routed.empty(), "routed experts needed")
      .Rows("x", a.x)
      .Shape("experts", a.experts, {n, a.experts.dim(1)})
      .Shape("weights", a.weights, {n, a.experts.dim(1)})
      .Shape("out", a.out, {n, d});
  const auto expert = [&](const ExpertWeights& e) {
    check.Matrix("w1", e.w1, e.w1.rows, d)
        .Matrix("w3", e.w3, e.w1.rows, d)
        .Matrix("w2", e.w2, d, e.w1.rows);
  };
  for (const ExpertWeights& e : a.routed) expert(e);
  expert(a.shared);
  return check.Done();
}

Status CheckExpertIds(const MoeArgs& a) {
  ShapeCheck check("moe");
  for (const int32_t id : a.experts.elements()) {
    check.That(id >= 0 && id < static_cast<int64_t>(a.routed.size()), "expert id out of range");
  }
  return check.Done();
}

Status Check(const HeadArgs& a) {
  const int64_t n = a.hc.dim(0), hc = a.hc.dim(1), d = a.hc.dim(2),
                m = static_cast<int64_t>(a.rows.size());
  ShapeCheck check("head");
  check.That(a.hc.rank() == 3 && hc <= kMaxHcMult, "hc must be [n, hc_mult, D]")
      .Shape("hc", a.hc, {n, hc, d})
      .Shape("fn", a.fn, {hc, hc * d})
      .Shape("base", a.base, {hc})
      .Shape("scale", a.scale, {1})
      .Shape("norm_weight", a.norm_weight, {d})
      .Matrix("head", a.head, a.head.rows, d)
      .Shape("logits", a.logits, {m, a.head.rows});
  for (int row : a.rows) check.That(row >= 0 && row < n, "row out of range");
  return check.Done();
}

Status Check(const SampleArgs& a) {
  const auto m = static_cast<int64_t>(a.rows.size());
  const int64_t vocab = a.logits.dim(1);
  ShapeCheck check("sample");
  check.Shape("logits", a.logits, {a.logits.dim(0), vocab})
      .That(vocab >= 1 && vocab <= std::numeric_limits<TokenId>::max(),
            "logits of 1 to 2^31 - 1 tokens needed")
      .That(static_cast<int64_t>(a.indices.size()) == m, "one of the indices for each row needed")
      .Shape("tokens", a.tokens, {m})
      .Shape("logprobs", a.logprobs, {m});
  int before = -1;
  for (const int index : a.indices) {
    check.That(index > before && index < a.logits.dim(0), "indices must be ascending rows");
    before = index;
  }
  for (const SampleRow& row : a.rows) {
    if (!check.ok()) break;
    CheckSampleRow(row, vocab, check);
  }
  return check.Done();
}

}  // namespace fathom
