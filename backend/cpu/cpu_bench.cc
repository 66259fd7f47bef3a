// Times every operation of CpuBackend at the shapes of fathom-nano, of the preset `mid` or of
// V4-Flash.
//
//   cpu_bench [nano|mid|flash] [tokens of the step] [threads] [position]
//
// Prints the median and the fastest of many runs, and the bytes of weights that an operation reads
// per second where it reads any. Weights are random; flash uses 32 of its 256 experts.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/test_support.h"

namespace fathom {
namespace {

using test::MakeWeight;
using test::Random;
using test::TestPages;
using test::TestPlan;
using test::TestWeight;

struct Shapes {
  int dim, q_lora, heads, head_dim, groups, o_rank, experts, k, width, index_heads, index_dim, topk;
  int vocab;
};
constexpr Shapes kNano = {256, 128, 4, 128, 2, 128, 16, 4, 128, 4, 128, 64, 2560};
constexpr Shapes kMid = {2048, 512, 16, 512, 4, 512, 64, 6, 1024, 16, 128, 512, 16384};
constexpr Shapes kFlash = {4096, 1024, 64, 512, 8, 1024, 32, 6, 2048, 64, 128, 512, 16160};
constexpr int kRope = 64, kHc = 4, kWindow = 128;

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

void Report(const char* name, int64_t weight_bytes, const std::function<Status()>& op) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> micros;
  const auto end = Clock::now() + std::chrono::milliseconds(300);
  for (int i = 0; i < 3; ++i) Must(op());
  while (micros.size() < 5 || (Clock::now() < end && micros.size() < 20'000)) {
    const auto begin = Clock::now();
    Must(op());
    micros.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::sort(micros.begin(), micros.end());
  const double median = micros[micros.size() / 2];
  std::printf("%-28s %10.1f us  best %10.1f us", name, median, micros[0]);
  if (weight_bytes > 0) {
    std::printf("  %6.2f GB/s", static_cast<double>(weight_bytes) / median * 1e-3);
  }
  std::printf("\n");
}

int64_t Bytes(const TestWeight& w) { return static_cast<int64_t>(w.data.size() + w.scale.size()); }

int Run(const Shapes& s, int n, int threads, int position) {
  Random random(1);
  CpuBackend backend(Numerics::kOfficial, threads);
  BackendLimits limits;
  limits.max_rows = n;
  limits.max_cols = std::max({s.dim, s.groups * s.o_rank, s.heads * s.head_dim / s.groups});
  limits.max_experts = s.experts;
  limits.max_experts_per_token = s.k;
  limits.max_expert_width = s.width;
  limits.max_heads = std::max(s.heads, s.index_heads);
  limits.max_head_dim = std::max(s.head_dim, s.index_dim);
  limits.max_positions = position + n;
  Must(backend.Prepare(limits));

  const auto linear = [&](const char* name, DType dtype, int rows, int cols, bool round) {
    const TestWeight w = MakeWeight(random, dtype, rows, cols);
    std::vector<float> x = random.Bf16s(int64_t{n} * cols), y(static_cast<size_t>(n * rows));
    LinearArgs args;
    args.x = {x.data(), n, cols};
    args.first = {w.view, {y.data(), n, rows}};
    args.round_output = round;
    Report(name, Bytes(w), [&] { return backend.Linear(args); });
  };
  linear("linear wq_a (fp8)", DType::kF8E4M3, s.q_lora, s.dim, true);
  linear("linear wq_b (fp8)", DType::kF8E4M3, s.heads * s.head_dim, s.q_lora, true);
  linear("linear wo_b (fp8)", DType::kF8E4M3, s.dim, s.groups * s.o_rank, true);
  linear("linear compressor (bf16)", DType::kBF16, 2 * s.head_dim, s.dim, false);
  linear("linear expert (fp4)", DType::kI8, s.width, s.dim, true);

  std::vector<float> hc = random.Bf16s(int64_t{n} * kHc * s.dim);
  std::vector<float> fn = random.Normals(int64_t{24} * kHc * s.dim, 0.01f), base(24),
                     scale(3, 1.0f);
  std::vector<float> x = random.Bf16s(int64_t{n} * s.dim), norm = random.Bf16s(s.dim);
  std::vector<float> post(static_cast<size_t>(n * kHc)), comb(static_cast<size_t>(n * kHc * kHc));
  const TensorView<float> copies(hc.data(), n, kHc, s.dim);
  Report("hc_pre_norm", static_cast<int64_t>(fn.size() * 4), [&] {
    return backend.HcPreNorm({copies,
                              {fn.data(), 24, kHc * s.dim},
                              {base.data(), 24},
                              {scale.data(), 3},
                              {norm.data(), s.dim},
                              1e-6f,
                              1e-6f,
                              20,
                              {x.data(), n, s.dim},
                              {post.data(), n, kHc},
                              {comb.data(), n, kHc, kHc}});
  });
  const std::vector<float> zeros(comb.size());
  Report("hc_post", 0, [&] {
    // In place: without mixing (comb = 0) the copies stay what they are from run to run.
    return backend.HcPost(
        {{x.data(), n, s.dim}, {post.data(), n, kHc}, {zeros.data(), n, kHc, kHc}, copies});
  });
  Report("rms_norm", 0, [&] {
    return backend.RmsNorm(
        {{hc.data(), n, s.dim}, {norm.data(), s.dim}, 1e-6f, {x.data(), n, s.dim}});
  });

  const TestWeight table = MakeWeight(random, DType::kBF16, s.vocab, s.dim);
  TestPlan plan({{position, n}});
  Report("embed_expand", 0, [&] { return backend.EmbedExpand({plan.ids, table.view, copies}); });
  std::vector<float> logits(static_cast<size_t>(s.vocab));
  const int last = n - 1;
  Report("head, one row", Bytes(table), [&] {
    return backend.Head({copies,
                         {&last, 1},
                         {fn.data(), kHc, kHc * s.dim},
                         {base.data(), kHc},
                         {scale.data(), 1},
                         {norm.data(), s.dim},
                         table.view,
                         1e-6f,
                         1e-6f,
                         {logits.data(), 1, s.vocab}});
  });

  // Experts.
  const TestWeight gate = MakeWeight(random, DType::kBF16, s.experts, s.dim);
  std::vector<float> bias(static_cast<size_t>(s.experts)), mix(static_cast<size_t>(n * s.k));
  std::vector<int32_t> chosen(mix.size());
  RouteArgs route;
  route.x = {x.data(), n, s.dim};
  route.gate = gate.view;
  route.bias = {bias.data(), s.experts};
  route.experts = {chosen.data(), n, s.k};
  route.weights = {mix.data(), n, s.k};
  Report("route", Bytes(gate), [&] { return backend.Route(route); });
  std::vector<TestWeight> weights;
  for (int e = 0; e <= s.experts; ++e) {
    const DType dtype = e == s.experts ? DType::kF8E4M3 : DType::kI8;
    weights.push_back(MakeWeight(random, dtype, s.width, s.dim));
    weights.push_back(MakeWeight(random, dtype, s.dim, s.width));
    weights.push_back(MakeWeight(random, dtype, s.width, s.dim));
  }
  std::vector<ExpertWeights> experts;
  int64_t expert_bytes = 0;
  for (size_t e = 0; e <= static_cast<size_t>(s.experts); ++e) {
    experts.push_back({weights[3 * e].view, weights[3 * e + 1].view, weights[3 * e + 2].view});
    const bool used = e == static_cast<size_t>(s.experts) ||
                      std::find(chosen.begin(), chosen.end(), static_cast<int>(e)) != chosen.end();
    if (used) {
      expert_bytes += Bytes(weights[3 * e]) + Bytes(weights[3 * e + 1]) + Bytes(weights[3 * e + 2]);
    }
  }
  std::vector<float> out(x.size());
  MoeArgs moe;
  moe.x = route.x;
  moe.experts = route.experts;
  moe.weights = route.weights;
  moe.routed = std::span(experts).first(static_cast<size_t>(s.experts));
  moe.shared = experts.back();
  moe.swiglu_limit = 10.0f;
  moe.out = {out.data(), n, s.dim};
  Report("moe", expert_bytes, [&] { return backend.Moe(moe); });

  // Attention and the cache.
  const int64_t length = position + n;
  const PageFormat kv_format = {EntryEncoding::kE4m3Rope, s.head_dim, kRope, 64};
  TestPages swa(random, kv_format, 1, length), c4(random, kv_format, 1, length / 4 + 1);
  TestPages keys(random, {EntryEncoding::kE2m1, s.index_dim, 0, 64}, 1, length / 4 + 1);
  const int wide = 2 * s.head_dim;
  TestPages state(random, {EntryEncoding::kF32, 2 * wide, 0, 8}, 1, length);
  swa.Fill(random, length);
  c4.Fill(random, length / 4 + 1);
  keys.Fill(random, length / 4 + 1);
  plan.SetTables(CacheKind::kSwaKv, swa.tables());
  plan.SetTables(CacheKind::kC4Kv, c4.tables());
  plan.SetTables(CacheKind::kC4State, state.tables());

  std::vector<float> frequencies(kRope / 2, 0.01f), cos_sin(static_cast<size_t>(n * kRope));
  const TensorView<float> turns(cos_sin.data(), n, kRope / 2, 2);
  Report("rope_table", 0, [&] {
    return backend.RopeTable({plan.positions, {frequencies.data(), kRope / 2}, turns});
  });
  std::vector<float> q = random.Bf16s(int64_t{n} * s.heads * s.head_dim);
  std::vector<float> kv = random.Bf16s(int64_t{n} * s.head_dim), kv_norm = random.Bf16s(s.head_dim);
  // On a cache line, as the model has it: tiles of attention are read from it.
  std::vector<float> step_memory(kv.size() + 16);
  void* aligned = step_memory.data();
  size_t room = step_memory.size() * sizeof(float);
  const TensorView<float> step_kv(
      static_cast<float*>(std::align(64, kv.size() * sizeof(float), aligned, room)), n, s.head_dim);
  const TensorView<float> queries(q.data(), n, s.heads, s.head_dim);
  Report("q_norm_rope_kv_insert", 0, [&] {
    return backend.QNormRopeKvInsert({queries,
                                      {kv.data(), n, s.head_dim},
                                      {kv_norm.data(), s.head_dim},
                                      turns,
                                      1e-6f,
                                      &plan.plan,
                                      swa.view(),
                                      step_kv});
  });
  std::vector<float> rows = random.Normals(int64_t{n} * wide),
                     ape = random.Normals(int64_t{4} * wide);
  const int ending = EntriesEnding(plan.sequences[0], 4).count;
  std::vector<float> anchors = random.Normals(int64_t{ending} * kRope + 1);
  CompressInsertArgs compress;
  compress.kv_rows = compress.score_rows = {rows.data(), n, wide};
  compress.ape = {ape.data(), 4, wide};
  compress.norm_weight = {kv_norm.data(), s.head_dim};
  compress.anchor_cos_sin = {anchors.data(), ending, kRope / 2, 2};
  compress.norm_eps = 1e-6f;
  compress.ratio = 4;
  compress.plan = &plan.plan;
  compress.state = state.view();
  compress.out = c4.view();
  Report("compress_insert, ratio 4", 0, [&] { return backend.CompressInsert(compress); });

  std::vector<float> index_q = random.Bf16s(int64_t{n} * s.index_heads * s.index_dim);
  std::vector<float> head_weights = random.Bf16s(int64_t{n} * s.index_heads);
  std::vector<int32_t> entries(static_cast<size_t>(n * s.topk)), counts(static_cast<size_t>(n));
  IndexerTopkArgs indexer;
  indexer.q = {index_q.data(), n, s.index_heads, s.index_dim};
  indexer.head_weights = {head_weights.data(), n, s.index_heads};
  indexer.cos_sin = turns;
  indexer.plan = &plan.plan;
  indexer.keys = keys.view();
  indexer.topk = s.topk;
  indexer.entries = {entries.data(), n, s.topk};
  indexer.num_entries = {counts.data(), n};
  // The keys share the class of the c4 entries, whose blocks stand elsewhere.
  plan.SetTables(CacheKind::kC4IndexKeys, keys.tables());
  Report("indexer_topk", 0, [&] { return backend.IndexerTopk(indexer); });
  plan.SetTables(CacheKind::kC4Kv, c4.tables());

  std::vector<float> sink(static_cast<size_t>(s.heads)), o(q.size());
  SparseAttentionArgs attention;
  attention.q = queries;
  attention.plan = &plan.plan;
  attention.step_kv = step_kv;
  attention.swa = swa.view();
  attention.window = kWindow;
  attention.sink = {sink.data(), s.heads};
  attention.scale = 0.05f;
  attention.out = {o.data(), n, s.heads, s.head_dim};
  Report("sparse_attention, window", 0, [&] { return backend.SparseAttention(attention); });
  attention.compressed = c4.view();
  attention.ratio = 4;
  attention.entries = indexer.entries;
  attention.num_entries = indexer.num_entries;
  Report("sparse_attention, + top-k", 0, [&] { return backend.SparseAttention(attention); });

  const TestWeight wo_a =
      MakeWeight(random, DType::kF8E4M3, s.groups * s.o_rank, s.heads * s.head_dim / s.groups);
  std::vector<float> u(static_cast<size_t>(n * s.groups * s.o_rank));
  Report("inverse_rope_out (fp8)", Bytes(wo_a), [&] {
    return backend.InverseRopeOut(
        {attention.out, turns, wo_a.view, s.groups, {u.data(), n, s.groups * s.o_rank}});
  });
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  const auto number = [&](int i, int fallback) { return argc > i ? std::atoi(argv[i]) : fallback; };
  struct Model {
    const char* name;
    fathom::Shapes shapes;
    int position;
  };
  static constexpr Model kModels[] = {
      {"nano", fathom::kNano, 1000}, {"mid", fathom::kMid, 4096}, {"flash", fathom::kFlash, 4096}};
  const std::string name = argc > 1 ? argv[1] : "nano";
  const Model* model = std::find_if(std::begin(kModels), std::end(kModels),
                                    [&](const Model& m) { return name == m.name; });
  if (model == std::end(kModels) || number(2, 1) < 1 || number(4, 0) < 0) {
    std::fprintf(stderr, "usage: cpu_bench [nano|mid|flash] [tokens] [threads] [position]\n");
    return 1;
  }
  const int n = number(2, 1), threads = number(3, fathom::DefaultThreadCount());
  const int position = number(4, model->position);
  std::printf("%s, %d token(s) at position %d, %d thread(s)\n", model->name, n, position, threads);
  return fathom::Run(model->shapes, n, threads, position);
}
