// Failures that users reported on other engines, input kind "sequence"
// (tests/data/vectors/README.md). Which report is tested where: tests/reports/README.md.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/synth_test_data.h"
#include "tests/reports/report_files.h"
#include "tests/reports/sequence_run.h"
#include "tests/test_data.h"

namespace fathom::reports {
namespace {

using nlohmann::json;

// Reports that are not run by SequenceRun, and why. The change that brings what they need moves
// them.
const std::map<std::string, std::string>& NotHere() {
  static const std::map<std::string, std::string> reports = {
      {"R065", "drafts (MTP)"},
      {"R071", "a disk tier of the cache"},
      {"R073", "saved states; SavedStates below covers what there is"},
      {"R085", "an engine that can stop; server/watchdog_test.cc has it"},
      {"R114", "drafts (MTP)"},
  };
  return reports;
}

// A random checkpoint with all kinds of layers, otherwise as small as one can be: some reports have
// long prompts.
void WriteTiny(const std::filesystem::path& directory) {
  GeometryChanges changes;
  changes.ratios = {{0, 4, 128}};
  changes.hidden = 128;
  changes.heads = changes.o_groups = changes.index_heads = 1;
  changes.index_head_dim = 64;
  changes.index_topk = 8;
  changes.experts = 2;
  changes.experts_per_token = 1;
  auto config = ChangeGeometry(synth_test::Preset("tiny"), "tiny", changes);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  const Status written = synth_test::Write(*config, directory);
  ASSERT_TRUE(written.ok()) << written.ToString();
}

class SequenceReport : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, SequenceReport, testing::ValuesIn(ReportIds("sequence")),
                         [](const testing::TestParamInfo<std::string>& test) {
                           return test.param;
                         });

TEST_P(SequenceReport, BehavesAsItShould) {
  const json report = ReadReport(GetParam());
  SCOPED_TRACE(report.at("title").get<std::string>());
  if (const auto elsewhere = NotHere().find(GetParam()); elsewhere != NotHere().end()) {
    GTEST_SKIP() << "SKIPPED: " << GetParam() << " needs " << elsewhere->second;
  }
  const TempDirectory model;
  WriteTiny(model.path());
  if (HasFailure()) return;
  SequenceRun(report, model.path()).Run();
}

TEST(SequenceReports, AreAllThere) {
  EXPECT_EQ(ReportIds("sequence").size(), 14u);
  for (const auto& [id, reason] : NotHere()) {
    EXPECT_EQ(ReadReport(id).at("input").at("kind"), "sequence") << id;
  }
}

// R073. There is no call that saves a state, but there are states: a request continues from the
// pages that an earlier one left in front of its last prompt token, and one that was preempted from
// those it left itself. At the report's lengths both are exact.
TEST(SavedStates, ContinueExactlyAtTheReportsLengths) {
  const json report = ReadReport("R073");
  const TempDirectory model;
  WriteTiny(model.path());
  if (HasFailure()) return;
  const json& steps = report.at("input").at("steps");
  const json& generate = steps.at(0).at("generate");
  invariance::Setting setting;
  setting.model = model.path();
  setting.max_model_len = 1024;
  invariance::Setting direct_setting = setting;
  direct_setting.prefix_caching = false;
  invariance::Engine direct(direct_setting), engine(setting);
  ASSERT_TRUE(direct.ok() && engine.ok());
  for (const int64_t length :
       report.at("input").at("for_each_length").get<std::vector<int64_t>>()) {
    SCOPED_TRACE("length " + std::to_string(length));
    invariance::Case c;
    c.prompt =
        invariance::Pattern(generate.at("pattern").at(0).get<int64_t>(), length, engine.vocab());
    c.max_tokens = generate.at("n").get<int64_t>();
    const invariance::Answer want = direct.RunAlone({c})[0];
    // Lengths share a prefix; each is to find its own state only.
    engine.core().cache().ClearPrefixes();
    invariance::Disturbance preempted;
    preempted.preempt_chance = 0.5;
    preempted.seed = static_cast<uint64_t>(length);
    const invariance::Answer resumed = engine.Run({c}, preempted)[0];
    EXPECT_GT(resumed.num_preemptions, 0);
    EXPECT_TRUE(want.SameResult(resumed)) << invariance::Difference(want, resumed);
    const invariance::Answer restored = engine.RunAlone({c})[0];
    EXPECT_EQ(restored.cached_tokens, length - 1);
    EXPECT_TRUE(want.SameResult(restored)) << invariance::Difference(want, restored);
  }
}

}  // namespace
}  // namespace fathom::reports
