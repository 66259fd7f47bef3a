// Failures that users reported on other engines, input kind "numeric"
// (tests/data/vectors/README.md): each against the function or operation of fathom that could make
// the same mistake. Operations run on the reference backend in exact numerics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "backend/ops/test_pages.h"
#include "backend/reference/reference_backend.h"
#include "backend/reference/scalar_math.h"
#include "base/formats.h"
#include "engine/sampler.h"
#include "model/rope.h"
#include "tests/reports/report_files.h"

namespace fathom {
namespace {

using nlohmann::json;

// Reports that wait for a part of fathom that does not exist yet. The part's change moves its
// report from here to the table of checks.
const std::map<std::string, std::string>& NotYet() {
  static const std::map<std::string, std::string> reports = {
      {"R115", "rejection step of speculative decoding (MTP)"},
  };
  return reports;
}

std::vector<float> Floats(const json& values) { return values.get<std::vector<float>>(); }

void ExpectClose(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-5 * std::fabs(want[i])) << "element " << i;
  }
}

// R074. `entry_rotation_position` is computed by the model; the goldens judge it.
void RopeInverseFrequencies(const json& input, const json& expect) {
  ModelConfig config;
  config.rope_dim = input["rope_head_dim"];
  config.rope_theta = input["window_only"]["theta"];
  const json& compressed = input["compressed"];
  config.compress_rope_theta = compressed["theta"];
  config.rope_scaling = {compressed["factor"], compressed["original"], compressed["beta_fast"],
                         compressed["beta_slow"]};
  const std::vector<float> blended = RopeFrequencies(config, true);
  ExpectClose(blended, Floats(expect["compressed_inv_freq"]));
  ExpectClose(RopeFrequencies(config, false), Floats(expect["window_inv_freq"]));
  // Up to `low` nothing is slowed, from `high` on everything by the factor.
  const size_t low = expect["ramp_low_high"][0], high = expect["ramp_low_high"][1];
  for (size_t k = 0; k < blended.size(); ++k) {
    const double plain =
        std::pow(config.compress_rope_theta, -2.0 * static_cast<double>(k) / config.rope_dim);
    const double share = static_cast<double>(blended[k]) / plain;
    if (k <= low) {
      EXPECT_NEAR(share, 1.0, 1e-5) << k;
    }
    if (k > low && k < high) {
      EXPECT_TRUE(share < 0.99 && share > 0.07) << k << " " << share;
    }
    if (k >= high) {
      EXPECT_NEAR(share, 1.0 / config.rope_scaling.factor, 1e-5) << k;
    }
  }
}

// First position that a query's window holds: keys count positions, all scores are equal, so the
// answer is the middle of the window.
int WindowFirst(int position) {
  TestPages pages({{position, 1}}, position / 64 + 1);
  const PageView swa = pages.Add(CacheKind::kSwaKv, {EntryEncoding::kF32, 1, 0, 64});
  for (int p = 0; p < position; ++p) {
    pages.Write(CacheKind::kSwaKv, 0, p, std::vector<float>{static_cast<float>(p)});
  }
  ReferenceBackend backend(Numerics::kExact);
  const float q = 0.0f, sink = -1e30f, own = static_cast<float>(position);
  float out = -1.0f;
  SparseAttentionArgs args;
  args.q = {&q, 1, 1, 1};
  args.plan = &pages.plan();
  args.step_kv = {&own, 1, 1};
  args.swa = swa;
  args.window = 128;
  args.sink = {&sink, 1};
  args.scale = 1.0f;
  args.out = {&out, 1, 1, 1};
  const Status status = backend.SparseAttention(args);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return static_cast<int>(std::lround(2 * out)) - position;
}

// Whether token `token` contributes to ratio-4 entry `entry`: all K are 0 but the token's.
bool Contributes(int token, int entry) {
  const int n = 4 * (entry + 1);
  TestPages pages({{0, n}}, n / 64 + 1);
  const PageView state = pages.Add(CacheKind::kC4State, {EntryEncoding::kF32, 4, 0, 64});
  const PageView out = pages.Add(CacheKind::kC4Kv, {EntryEncoding::kF32, 1, 0, 64});
  std::vector<float> k(static_cast<size_t>(2 * n)), s(k.size()), ape(8),
      rotation(static_cast<size_t>(n));
  k[static_cast<size_t>(2 * token)] = k[static_cast<size_t>(2 * token + 1)] = 1.0f;
  const float weight = 1.0f;
  CompressInsertArgs args;
  args.kv_rows = {k.data(), n, 2};
  args.score_rows = {s.data(), n, 2};
  args.ape = {ape.data(), 4, 2};
  args.norm_weight = {&weight, 1};
  args.anchor_cos_sin = {rotation.data(), n / 4, 0, 2};
  args.norm_eps = 1e-6f;
  args.ratio = 4;
  args.plan = &pages.plan();
  args.state = state;
  args.out = out;
  ReferenceBackend backend(Numerics::kExact);
  const Status status = backend.CompressInsert(args);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return pages.Read(CacheKind::kC4Kv, 0, entry)[0] != 0.0f;
}

// R054. Which tokens a filter keeps shows in many draws; probabilities are the log-probabilities.
void SamplingFilters(const json& input, const json& expect) {
  const std::vector<float> logits = Floats(input["logits"]);
  const int vocab = static_cast<int>(logits.size());
  for (size_t c = 0; c < input["cases"].size(); ++c) {
    const json& filter = input["cases"][c];
    SamplingParams params;
    params.temperature = filter["temperature"];
    params.top_p = filter["top_p"];
    params.min_p = filter.value("min_p", 0.0);
    params.top_k = filter.value("top_k", 0);
    params.seed = 1;
    Sampler sampler(params, 0, vocab, {});
    SampleScratch scratch(vocab);
    std::set<TokenId> kept;
    // The rarest token of a kept set has probability 0.01: missing it in 5,000 draws is no
    // accident.
    for (int position = 0; position < 5000; ++position) {
      std::vector<float> row = logits;
      kept.insert(sampler.Sample(row, position, {}, nullptr, -1, scratch).token);
    }
    EXPECT_EQ(kept, expect["kept_indices"][c].get<std::set<TokenId>>()) << filter;
  }
  Sampler sampler({}, 0, vocab, {});
  SampleScratch scratch(vocab);
  std::vector<float> row = logits;
  std::vector<float> probabilities(logits.size());
  for (const TokenLogprob& top : sampler.Sample(row, 0, {}, nullptr, vocab, scratch).top) {
    probabilities[static_cast<size_t>(top.token)] = std::exp(top.logprob);
  }
  ExpectClose(probabilities, Floats(expect["probabilities_at_temperature_1"]));
}

// R075
void EntryTable(const json& input, const json& expect) {
  const auto queries = input["queries"].get<std::vector<int>>();
  for (size_t i = 0; i < queries.size(); ++i) {
    SCOPED_TRACE("query " + std::to_string(queries[i]));
    EXPECT_EQ(VisibleEntries(queries[i], 4), expect["visible_ratio4"][i]);
    EXPECT_EQ(VisibleEntries(queries[i], 128), expect["visible_ratio128"][i]);
    EXPECT_EQ(WindowFirst(queries[i]), expect["window_first"][i]);
    EXPECT_EQ(EntriesEnding({0, 1, queries[i]}, 4).count == 1, expect["compress_now_ratio4"][i]);
  }
  for (const auto& [entry, range] : expect["entry_tokens_ratio4"].items()) {
    const int j = std::stoi(entry), first = range[0], last = range[1];
    SCOPED_TRACE("entry " + entry);
    for (int token = first; token <= last; ++token) EXPECT_TRUE(Contributes(token, j)) << token;
    if (first > 0) {
      EXPECT_FALSE(Contributes(first - 1, j));
    }
    ASSERT_EQ(last, 4 * j + 3);  // Contributes ends there: the entry exists by then
  }
}

// Selections of one-row sequences by IndexerTopk when entry j scores scores[j] for every query.
// A length of 0 tokens is a sequence without rows.
std::vector<std::vector<int>> Select(const std::vector<int>& lengths,
                                     const std::vector<float>& scores, int topk) {
  std::vector<TestSequence> sequences;
  for (int length : lengths) sequences.push_back({std::max(length - 1, 0), length > 0 ? 1 : 0});
  TestPages pages(sequences, static_cast<int>(scores.size()) / 64 + 1);
  constexpr size_t kDim = 32;
  const PageView keys = pages.Add(CacheKind::kC4IndexKeys, {EntryEncoding::kF32, kDim, 0, 64});
  const auto n = static_cast<size_t>(pages.plan().num_rows());
  // Two heads, whose rotated queries are 1 at channel 0 and at channel 1; the second one counts
  // against an entry.
  std::vector<float> q(n * 2 * kDim), weights(2 * n), rotation(2 * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t c = 0; c < kDim; ++c) {
      const float unit = 1.0f / std::sqrt(static_cast<float>(kDim));
      q[2 * i * kDim + c] = unit;
      q[(2 * i + 1) * kDim + c] = c % 2 == 0 ? unit : -unit;
    }
    weights[2 * i] = 1.0f;
    weights[2 * i + 1] = -1.0f;
    rotation[2 * i] = 1.0f;
  }
  for (size_t s = 0; s < lengths.size(); ++s) {
    for (size_t j = 0; j < static_cast<size_t>(lengths[s] / 4); ++j) {
      std::vector<float> key(kDim);
      key[scores[j] < 0.0f ? 1 : 0] = std::fabs(scores[j]);
      pages.Write(CacheKind::kC4IndexKeys, s, static_cast<int64_t>(j), key);
    }
  }
  std::vector<int32_t> entries(n * static_cast<size_t>(topk), -77), counts(n, -77);
  const auto rows = static_cast<int64_t>(n);
  ReferenceBackend backend(Numerics::kExact);
  const Status status = backend.IndexerTopk({.q = {q.data(), rows, 2, kDim},
                                             .head_weights = {weights.data(), rows, 2},
                                             .cos_sin = {rotation.data(), rows, 1, 2},
                                             .plan = &pages.plan(),
                                             .keys = keys,
                                             .topk = topk,
                                             .entries = {entries.data(), rows, topk},
                                             .num_entries = {counts.data(), rows}});
  EXPECT_TRUE(status.ok()) << status.ToString();
  std::vector<std::vector<int>> selected;
  size_t row = 0;
  for (int length : lengths) {
    selected.emplace_back();
    if (length == 0) continue;
    const auto begin = entries.begin() + static_cast<long>(row) * topk;
    selected.back().assign(begin, begin + counts[row]);
    EXPECT_TRUE(std::all_of(begin + counts[row], begin + topk, [](int e) { return e == -1; }));
    ++row;
  }
  return selected;
}

// R079
void TopkCount(const json& input, const json& expect) {
  for (size_t i = 0; i < input["cases"].size(); ++i) {
    const json& c = input["cases"][i];
    const std::vector<float> scores(c["prompt_tokens"].get<size_t>() / 4, 1.0f);
    const auto selected = Select({c["prompt_tokens"]}, scores, c["index_topk"]);
    EXPECT_EQ(selected[0].size(), expect["selected_for_last_query"][i]) << c;
  }
}

// R080
void TopkSelect(const json& input, const json& expect) {
  ASSERT_EQ(input["ratio"], 4);
  ASSERT_EQ(expect["padding"], -1);  // Select looks at it
  for (size_t i = 0; i < input["queries"].size(); ++i) {
    const int length = input["queries"][i].get<int>() + 1;
    EXPECT_EQ(Select({length}, Floats(input["scores_per_entry"]), input["index_topk"])[0],
              expect["selected_sets"][i].get<std::vector<int>>())
        << "query " << length - 1;
  }
}

// R083
void TopkBatch(const json& input, const json& expect) {
  ASSERT_EQ(input["scores"], "score(row,t) = t");
  const auto selected =
      Select(input["lengths"].get<std::vector<int>>(), {0, 1, 2, 3}, input["index_topk"]);
  EXPECT_EQ(selected, expect["selected"].get<std::vector<std::vector<int>>>());
}

// R095
void DecodeE8m0(const json& input, const json& expect) {
  for (size_t i = 0; i < input["bytes"].size(); ++i) {
    const auto byte = input["bytes"][i].get<uint8_t>();
    const double want = expect["values"][i];
    EXPECT_EQ(Ue8m0ToFloat(byte), static_cast<float>(want)) << int{byte};
    // As the scale of a weight of 1.
    const std::vector<uint8_t> codes(128, 0x38);
    std::vector<float> row(128);
    reference::DecodeWeightRow({DType::kF8E4M3, codes.data(), &byte, 1, 128}, 0, row);
    EXPECT_EQ(row, std::vector<float>(128, static_cast<float>(want))) << int{byte};
  }
  ASSERT_EQ(expect["byte_255"], "NaN");
  EXPECT_TRUE(std::isnan(Ue8m0ToFloat(255)));
}

// R096
void DecodeFp4(const json& input, const json& expect) {
  const std::string hex = input["bytes_hex"];
  std::vector<uint8_t> packed(16);  // one group of 32
  for (size_t i = 0; 2 * i < hex.size(); ++i) {
    packed[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  const auto scale = input["scale_byte"].get<uint8_t>();
  std::vector<float> row(32);
  reference::DecodeWeightRow({DType::kI8, packed.data(), &scale, 1, 32}, 0, row);
  row.resize(hex.size());
  EXPECT_EQ(row, Floats(expect["values"]));
}

const std::map<std::string, std::function<void(const json&, const json&)>>& Checks() {
  static const std::map<std::string, std::function<void(const json&, const json&)>> checks = {
      {"R074", RopeInverseFrequencies},
      {"R054", SamplingFilters},
      {"R075", EntryTable},
      {"R079", TopkCount},
      {"R080", TopkSelect},
      {"R083", TopkBatch},
      {"R095", DecodeE8m0},
      {"R096", DecodeFp4},
  };
  return checks;
}

class NumericReport : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, NumericReport, testing::ValuesIn(reports::ReportIds("numeric")),
                         [](const testing::TestParamInfo<std::string>& test) {
                           return test.param;
                         });

TEST_P(NumericReport, BehavesAsItShould) {
  const json report = reports::ReadReport(GetParam());
  SCOPED_TRACE(report["title"].get<std::string>());
  if (const auto missing = NotYet().find(GetParam()); missing != NotYet().end()) {
    GTEST_SKIP() << "SKIPPED: " << GetParam() << " needs " << missing->second;
  }
  const auto check = Checks().find(GetParam());
  ASSERT_NE(check, Checks().end()) << "no check for this report";
  check->second(report["input"], report["expect"]);
}

TEST(NumericReports, AreAllThere) {
  EXPECT_EQ(reports::ReportIds("numeric").size(), Checks().size() + NotYet().size());
}

}  // namespace
}  // namespace fathom
