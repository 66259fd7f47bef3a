// The window of one layer across steps: q_norm_rope_kv_insert, then sparse_attention. However a
// sequence is cut into steps, and although the cache keeps no more than each step's window, every
// query sees the same bits.
#include <algorithm>
#include <limits>
#include <vector>

#include "backend/ops/q_norm_rope_kv_insert.h"
#include "backend/ops/sparse_attention.h"
#include "backend/ops/test_backends.h"
#include "backend/ops/test_pages.h"
#include "backend/ops/test_values.h"

namespace fathom {
namespace {

using namespace testing_values;  // NOLINT(google-build-using-namespace)

constexpr int kDim = 72;
constexpr int kRope = 8;
constexpr int kHeads = 2;
constexpr size_t kQuery = kHeads * kDim;

// A layer's window over several sequences that grow together; what a row holds is a function of its
// sequence and position.
class WindowLayer {
 public:
  WindowLayer(Backend& backend, const PageFormat& format, int window,
              const std::vector<int>& length)
      : backend_(backend),
        window_(window),
        pages_(std::vector<TestSequence>(length.size()), 20),
        swa_(pages_.Add(CacheKind::kSwaKv, format)),
        weight_(Random(7).Bf16s(kDim, 0.5, 2.0)) {
    for (int n : length) outputs_.emplace_back(static_cast<size_t>(n) * kQuery, kUnset);
  }

  // `tail_only`: the cache has blocks for the windows of the step's first rows and of the rows to
  // come, no others.
  Status Step(const std::vector<TestSequence>& sequences, bool tail_only) {
    for (size_t s = 0; tail_only && s < sequences.size(); ++s) {
      const int start = sequences[s].start, end = start + sequences[s].num_rows;
      pages_.KeepBlocks(CacheKind::kSwaKv, s, {{Begin(start), start}, {Begin(end), end}});
    }
    pages_.SetStep(sequences);
    const int n = pages_.plan().num_rows();
    std::vector<float> q, kv, cos_sin;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int i = 0; i < sequences[s].num_rows; ++i) {
        const int position = sequences[s].start + i;
        Random random(1000 * static_cast<uint32_t>(s) + static_cast<uint32_t>(position));
        for (float v : random.Bf16s(kQuery, -3.0, 3.0)) q.push_back(v);
        for (float v : random.Bf16s(kDim, -3.0, 3.0)) kv.push_back(v);
        for (int k = 0; k < kRope / 2; ++k) AppendCosSin({random.Uniform(-3.0, 3.0)}, cos_sin);
      }
    }
    std::vector<float> step_kv(kv.size(), std::numeric_limits<float>::quiet_NaN());
    std::vector<float> out(q.size(), kUnset), sink = {0.3f, -1.5f};
    FATHOM_RETURN_IF_ERROR(backend_.QNormRopeKvInsert({.q = {q.data(), n, kHeads, kDim},
                                                       .kv = {kv.data(), n, kDim},
                                                       .kv_norm_weight = {weight_.data(), kDim},
                                                       .cos_sin = {cos_sin.data(), n, kRope / 2, 2},
                                                       .norm_eps = 1e-6f,
                                                       .plan = &pages_.plan(),
                                                       .swa = swa_,
                                                       .step_kv = {step_kv.data(), n, kDim}}));
    SparseAttentionArgs attention;
    attention.q = {q.data(), n, kHeads, kDim};
    attention.plan = &pages_.plan();
    attention.step_kv = {step_kv.data(), n, kDim};
    attention.swa = swa_;
    attention.window = window_;
    attention.sink = {sink.data(), kHeads};
    attention.scale = 0.25f;
    attention.out = {out.data(), n, kHeads, kDim};
    FATHOM_RETURN_IF_ERROR(backend_.SparseAttention(attention));
    for (size_t s = 0; s < sequences.size(); ++s) {
      const std::span<const float> rows =
          std::span(out).subspan(static_cast<size_t>(pages_.plan().sequences[s].first_row) * kQuery,
                                 static_cast<size_t>(sequences[s].num_rows) * kQuery);
      std::ranges::copy(rows,
                        outputs_[s].begin() + static_cast<long>(sequences[s].start) * long{kQuery});
    }
    return OkStatus();
  }

  // First position that a query after `end` tokens sees.
  [[nodiscard]] int Begin(int end) const { return std::max(0, end - window_ + 1); }
  // Attention of all positions, by sequence.
  [[nodiscard]] const std::vector<std::vector<float>>& outputs() const { return outputs_; }
  [[nodiscard]] const TestPages& pages() const { return pages_; }

 private:
  static constexpr float kUnset = -9.0f;
  Backend& backend_;
  int window_;
  TestPages pages_;
  PageView swa_;
  std::vector<float> weight_;
  std::vector<std::vector<float>> outputs_;
};

class StepRows : public OpTest {};
FATHOM_ON_ALL_BACKENDS(StepRows);

TEST_P(StepRows, AnyCutWithTheWindowsBlocksAloneGivesTheSameBits) {
  const std::vector<int> lengths = {270, 161, 40};
  const PageFormat format = KvFormat(official(), kDim, kRope, 16);
  // The second is the models'; the third is too long for the CPU backend to share between queries.
  for (const int window : {8, 128, 250}) {
    WindowLayer whole(backend(), format, window, lengths);
    ASSERT_STATUS_OK(whole.Step({{0, 270}, {0, 161}, {0, 40}}, false));
    for (const std::vector<float>& out : whole.outputs()) {
      for (float v : out) ASSERT_TRUE(std::isfinite(v) && v != -9.0f);
    }
    for (const int chunk : {1, 7, 64, 140}) {
      SCOPED_TRACE("window " + std::to_string(window) + ", chunks of " + std::to_string(chunk));
      WindowLayer cut(backend(), format, window, lengths);
      std::vector<int> done(lengths.size(), 0);
      while (done != lengths) {
        std::vector<TestSequence> step;
        for (size_t s = 0; s < lengths.size(); ++s) {
          // Other sizes per sequence, so that they drift apart.
          const int rows = std::min(chunk + static_cast<int>(s), lengths[s] - done[s]);
          step.push_back({done[s], rows});
          done[s] += rows;
        }
        ASSERT_STATUS_OK(cut.Step(step, true));
        for (size_t s = 0; s < lengths.size(); ++s) {
          EXPECT_TRUE(cut.pages().LostBlocksUntouched(CacheKind::kSwaKv, s));
        }
      }
      EXPECT_TRUE(cut.outputs() == whole.outputs());
      for (size_t s = 0; s < lengths.size(); ++s) {
        for (int p = cut.Begin(lengths[s]); p < lengths[s]; ++p) {
          ASSERT_EQ(cut.pages().Bytes(CacheKind::kSwaKv, s, p),
                    whole.pages().Bytes(CacheKind::kSwaKv, s, p))
              << s << " " << p;
        }
      }
      EXPECT_TRUE(cut.pages().GapsUntouched());
    }
  }
}

}  // namespace
}  // namespace fathom
