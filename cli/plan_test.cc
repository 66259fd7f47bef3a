// `fathom plan`: what it makes of a config and options, its JSON, and the program's flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/mapped_file.h"
#include "cli/numbers.h"
#include "cli/plan_output.h"
#include "cli/plan_report.h"
#include "engine/cuda_factory.h"

namespace fathom::cli {
namespace {

using testing::HasSubstr;

const std::string kPresets = std::string(FATHOM_SOURCE_DIR) + "/models/presets/";

ModelConfig Preset(const std::string& name) {
  const std::string path = kPresets + name + ".json";
  Result<MappedFile> file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << path;
  Result<ModelConfig> config = ParseModelConfig(
      {reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()}, path);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return *config;
}

PlanReport Plan(const std::string& preset, const PlanOptions& options) {
  Result<PlanReport> report = MakePlan(Preset(preset), options);
  EXPECT_TRUE(report.ok()) << report.status().ToString();
  return *std::move(report);
}

TEST(Numbers, CountsWithSuffixes) {
  EXPECT_EQ(*ParseCount("4096", "n", INT64_MAX), 4096);
  EXPECT_EQ(*ParseCount("64K", "n", INT64_MAX), 65536);
  EXPECT_EQ(*ParseCount("64k", "n", INT64_MAX), 64000);
  EXPECT_EQ(*ParseCount("1M", "n", INT64_MAX), 1048576);
  EXPECT_EQ(*ParseCount("3m", "n", INT64_MAX), 3000000);
  EXPECT_EQ(*ParseCount("20G", "n", INT64_MAX), int64_t{20} << 30);
  EXPECT_EQ(*ParseCount("3KiB", "n", INT64_MAX), 3072);
  EXPECT_EQ(*ParseCount("1MiB", "n", INT64_MAX), 1048576);
  EXPECT_EQ(*ParseCount("20GiB", "n", INT64_MAX), int64_t{20} << 30);
  EXPECT_EQ(*ParseCount("2g", "n", INT64_MAX), 2000000000);
  for (const char* wrong : {"", "K", "-1", "0", "1.5", "1 K", "1KB", "4096x", "0x10", " 1",
                            "99999999999999999999", "9223372036854775807K"}) {
    const Result<int64_t> count = ParseCount(wrong, "--n", INT64_MAX);
    ASSERT_FALSE(count.ok()) << wrong;
    EXPECT_THAT(count.status().message(), HasSubstr("--n '" + std::string(wrong) + "'"));
  }
  EXPECT_TRUE(ParseCount("1023K", "n", 1 << 20).ok());
  EXPECT_FALSE(ParseCount("1025K", "n", 1 << 20).ok());
}

TEST(Numbers, AsPeopleReadThem) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
  EXPECT_EQ(WithCommas(INT64_MIN), "-9,223,372,036,854,775,808");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.00 KiB");
  EXPECT_EQ(HumanBytes(13238272), "12.62 MiB");
  EXPECT_EQ(HumanBytes(159609485896), "148.6 GiB");
  EXPECT_EQ(HumanBytes((int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(HumanBytes(-(int64_t{5} << 30)), "-5.00 GiB");
  EXPECT_EQ(HumanBytes(INT64_MAX), "8.00 EiB");
}

TEST(Cards, NamesAreForgivingAndUnknownOnesListTheKnown) {
  for (const Card& card : Cards()) EXPECT_EQ(FindCard(card.name)->title, card.title);
  EXPECT_EQ(FindCard("RTX Pro_6000")->name, "rtx-pro-6000");
  const Result<Card> unknown = FindCard("h300");
  ASSERT_FALSE(unknown.ok());
  for (const Card& card : Cards()) {
    EXPECT_THAT(unknown.status().message(), HasSubstr(std::string(card.name)));
  }
  EXPECT_FALSE(FindCard("").ok());
}

TEST(PlanReport, PublishedNumbersFromThePresets) {
  const PlanReport flash = Plan("flash", {});
  EXPECT_EQ(flash.planner.slab_bytes(), 13238272);
  ASSERT_EQ(flash.lengths.size(), 4U);
  EXPECT_EQ(flash.lengths[3].length, 1048576);
  EXPECT_THAT(flash.lengths[3].compared, testing::ElementsAre(7219838976, 4040494080, 3688172544));
  EXPECT_EQ(Total(flash.weights).main_bytes + Total(flash.weights).mtp_bytes, 159609485896U);
  const PlanReport pro = Plan("pro", {});
  EXPECT_EQ(pro.planner.slab_bytes(), 18677760);
  EXPECT_THAT(pro.lengths[0].compared, testing::ElementsAre(48332800, 27134720, 25168640));
  EXPECT_EQ(pro.lengths[3].v32_style, int64_t{85888} << 20);  // 83.875 GiB
  EXPECT_EQ(Total(pro.weights).main_bytes + Total(pro.weights).mtp_bytes, 864704792696U);
}

TEST(PlanReport, ExpertsLeaveTheCardOnlyAsFarAsTheyMust) {
  PlanOptions options;
  options.card = *FindCard("h200");
  const PlanReport flash = Plan("flash", options);
  const CardPlan& plan = *flash.card;
  const MemoryPlan& memory = plan.memory;
  EXPECT_EQ(plan.usable_bytes, int64_t{137592879185});
  EXPECT_EQ(memory.weights.num_experts, 43 * 256);
  EXPECT_EQ(memory.num_device_experts() + memory.num_host_experts, 43 * 256);
  EXPECT_EQ(memory.device_weight_bytes + memory.step_bytes + memory.cache_bytes, plan.usable_bytes);
  // The loader leaves MTP blocks behind, and so does the plan.
  EXPECT_EQ(Total(flash.weights).mtp_bytes, 0U);
  // One sequence of a million tokens has room; with one expert more, and the rounding of a buffer,
  // it had not.
  const int64_t cache = flash.planner.BytesFor(1, 1048576);
  EXPECT_GE(memory.cache_bytes, cache);
  EXPECT_LT(memory.cache_bytes - memory.weights.expert_bytes - (int64_t{4} << 20), cache);
  EXPECT_EQ(*flash.cache_bytes, memory.cache_bytes);
  EXPECT_EQ(flash.max_fitting_length, 1048576);
  EXPECT_GE(flash.lengths.back().num_fitting, 1);

  // A cache of given size moves experts, and is what sequences fit into.
  options.cache_bytes = int64_t{60} << 30;
  const PlanReport given = Plan("flash", options);
  EXPECT_GT(given.card->memory.num_host_experts, memory.num_host_experts);
  EXPECT_EQ(*given.cache_bytes, int64_t{60} << 30);
  EXPECT_GE(given.card->memory.cache_bytes, int64_t{60} << 30);

  // So do bytes that the user has leave, and larger steps.
  options.cache_bytes.reset();
  options.expert_offload = {true, int64_t{80} << 30};
  const PlanReport outside = Plan("flash", options);
  EXPECT_LE(outside.card->memory.host_weight_bytes, int64_t{80} << 30);
  EXPECT_GT(outside.card->memory.cache_bytes, memory.cache_bytes);
  options.max_batched_tokens = 8192;
  EXPECT_GT(Plan("flash", options).card->memory.step_bytes, outside.card->memory.step_bytes);
  options.expert_offload = {};
  options.max_batched_tokens = 512;

  // One that has no place even without experts is cut to what has.
  options.cache_bytes = int64_t{500} << 30;
  const PlanReport cut = Plan("flash", options);
  EXPECT_EQ(cut.card->memory.num_device_experts(), 0);
  EXPECT_EQ(*cut.cache_bytes, cut.card->memory.cache_bytes);
  std::ostringstream text;
  PrintPlan(text, "flash", Preset("flash"), cut);
  EXPECT_THAT(text.str(), HasSubstr("less cache than the 500.0 GiB asked for"));
}

TEST(PlanReport, AModelThatFitsLeavesTheRestToTheCache) {
  PlanOptions options;
  options.card = *FindCard("b200");
  const PlanReport flash = Plan("flash", options);
  EXPECT_EQ(flash.card->memory.num_host_experts, 0);
  EXPECT_EQ(flash.card->memory.host_weight_bytes, 0);
  EXPECT_GT(*flash.cache_bytes, int64_t{15} << 30);
}

TEST(PlanReport, ACardThatIsTooSmallSaysSo) {
  PlanOptions options;
  options.card = *FindCard("rtx-4090");
  const PlanReport pro = Plan("pro", options);
  EXPECT_EQ(pro.card->memory.num_device_experts(), 0);
  EXPECT_LT(pro.card->memory.cache_bytes, 0);
  EXPECT_EQ(*pro.cache_bytes, 0);
  EXPECT_EQ(pro.max_fitting_length, 0);
  for (const LengthPlan& length : pro.lengths) EXPECT_EQ(length.num_fitting, 0);
  std::ostringstream text;
  PrintPlan(text, "pro", Preset("pro"), pro);
  EXPECT_THAT(text.str(), HasSubstr("too small even without routed experts"));
  EXPECT_THAT(text.str(), HasSubstr("cannot have a single token"));
  // With few experts outside it is too small for another reason.
  options.card = *FindCard("h100");
  options.expert_offload = {true, 0};
  std::ostringstream none;
  PrintPlan(none, "flash", Preset("flash"), Plan("flash", options));
  EXPECT_THAT(none.str(), HasSubstr("too small with as many routed experts"));
}

TEST(PlanReport, WithoutMtpItsWindowAndWeightsAreGone) {
  PlanOptions options;
  options.mtp = false;
  const PlanReport flash = Plan("flash", options);
  EXPECT_EQ(flash.planner.layout().BlockBytes(CacheClass::kSwa), 1609920);
  EXPECT_EQ(Total(flash.weights).mtp_bytes, 0U);
  EXPECT_EQ(flash.lengths[0].stored.mtp_window, 0);
}

TEST(PlanReport, RefusesWhatTheModelCannotHave) {
  const ModelConfig config = Preset("flash");
  PlanOptions options;
  options.lengths = {4096, 1048577};
  EXPECT_THAT(MakePlan(config, options).status().message(), HasSubstr("1,048,577"));
  options = {};
  options.max_model_len = 2000000;
  EXPECT_THAT(MakePlan(config, options).status().message(), HasSubstr("--max-model-len"));
  options = {};
  options.dtypes.indexer = CacheDType::kF32;
  EXPECT_THAT(MakePlan(config, options).status().message(), HasSubstr("fp32"));
  options.dtypes.attention = CacheDType::kF32;
  EXPECT_TRUE(MakePlan(config, options).ok());
}

// The largest sizes that config.json may have: arithmetic must not overflow.
TEST(PlanReport, AbsurdGeometriesAreCounted) {
  ModelConfig config = Preset("flash");
  config.num_layers = 1024;
  config.compress_ratios.assign(1024, 4);
  config.head_dim = 4096;
  config.index_head_dim = 4096;
  config.window = 1 << 20;
  config.num_experts = 4096;
  config.max_position_embeddings = 1 << 30;
  PlanOptions options;
  options.max_num_seqs = 1 << 20;
  options.cache_bytes = int64_t{1} << 50;
  options.card = *FindCard("h100");
  const Result<PlanReport> report = MakePlan(config, options);
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->lengths.back().stored.total(), int64_t{1} << 50);
  EXPECT_LT(report->max_fitting_length, 1 << 30);
}

struct Ran {
  int status = 0;
  std::string output;
};
Ran Fathom(const std::string& arguments) {
  Ran ran;
  const std::string command = FATHOM_BINARY_DIR "/fathom " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "popen failed"};
  std::array<char, 4096> buffer{};
  while (const size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) {
    ran.output.append(buffer.data(), n);
  }
  ran.status = WEXITSTATUS(pclose(pipe));
  return ran;
}

TEST(PlanCommand, JsonHasThePublishedNumbers) {
  const Ran ran = Fathom(
      "plan flash --lengths 4096,64K,1M --max-num-seqs 2"
      " --kv-cache-memory-bytes 20G --json");
  ASSERT_EQ(ran.status, 0) << ran.output;
  const nlohmann::json json = nlohmann::json::parse(ran.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ran.output;
  EXPECT_EQ(json["model"], "flash");
  EXPECT_EQ(json["layers"],
            (nlohmann::json{{"window_only", 2}, {"c4a", 21}, {"c128a", 20}, {"mtp", 1}}));
  EXPECT_EQ(json["max_num_seqs"], 2);
  EXPECT_EQ(json["cache"]["slab_bytes"], 13238272);
  EXPECT_EQ(json["cache"]["attention_dtype"], "fp8");
  EXPECT_EQ(json["cache"]["kinds"].size(), 7U);
  EXPECT_EQ(json["cache"]["classes"].size(), 4U);
  EXPECT_EQ(json["cache"]["classes"][0]["block_bytes"], 917568);
  ASSERT_EQ(json["lengths"].size(), 3U);
  const nlohmann::json& million = json["lengths"][2];
  EXPECT_EQ(million["tokens"], 1048576);
  EXPECT_EQ(million["entry_bytes"][2]["bytes"], 3688172544);
  EXPECT_EQ(million["stored_bytes"]["state"], 12206080);
  EXPECT_GE(million["sequences_that_fit"], 2);
  EXPECT_EQ(json["weights"].size(), 6U);
  EXPECT_EQ(json["cache_memory"]["longest_for_max_num_seqs"], 1048576);
}

TEST(PlanCommand, JsonHasTheCard) {
  const Ran ran = Fathom("plan flash --gpu h200 --max-num-seqs 2 --expert-offload 20 --json");
  ASSERT_EQ(ran.status, 0) << ran.output;
  const nlohmann::json json = nlohmann::json::parse(ran.output, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ran.output;
  const nlohmann::json& gpu = json["gpu"];
  EXPECT_EQ(gpu["name"], "h200");
  EXPECT_EQ(gpu["runs_in_this_build"], HasCudaBackend());
  EXPECT_EQ(gpu["experts"], 43 * 256);
  EXPECT_EQ(gpu["expert_bytes_on_host"], (int64_t{20} << 30) / 13369344 * 13369344);
  EXPECT_GT(gpu["step_bytes"], 0);
  EXPECT_GT(gpu["left_bytes"], 0);
  EXPECT_EQ(json["layers"]["mtp"], 0);
}

TEST(PlanCommand, TablesForAConfigFileADirectoryAndTheBundledModel) {
  const Ran file = Fathom("plan " + kPresets +
                          "pro.json --kv-cache-dtype bf16"
                          " --indexer-cache-dtype bf16 --lengths 1M");
  ASSERT_EQ(file.status, 0) << file.output;
  EXPECT_THAT(file.output, HasSubstr("10,334,371,840"));
  EXPECT_THAT(file.output, HasSubstr("90,060,095,488"));
  EXPECT_THAT(file.output, HasSubstr("65,536"));  // a bf16 page
  EXPECT_THAT(file.output, testing::Not(HasSubstr("cache memory")));
  const Ran directory =
      Fathom("plan --model " FATHOM_SOURCE_DIR "/models/fathom-nano --kv-cache-memory-bytes 64M");
  ASSERT_EQ(directory.status, 0) << directory.output;
  EXPECT_THAT(directory.output, HasSubstr("cache memory: 64.00 MiB"));
  const Ran bundled = Fathom("plan --kv-cache-dtype fp32");
  ASSERT_EQ(bundled.status, 0) << bundled.output;
  EXPECT_THAT(bundled.output, HasSubstr("fp32 + fp32 keys"));
}

TEST(PlanCommand, MistakesAreNamed) {
  struct Case {
    const char* arguments;
    int status;
    const char* message;
  };
  const Case cases[] = {
      {"plan flash --gpu h300", 2, "there are a100, h100, h200"},
      {"plan flash --lengths 4096,many", 2, "--lengths 'many'"},
      {"plan flash --lengths 0", 2, "--lengths '0'"},
      {"plan flash --kv-cache-dtype fp8_e5m2", 2, "'fp8_e5m2' is no format of attention entries"},
      {"plan flash --indexer-cache-dtype int4", 2, "'int4' is no format of index keys"},
      {"plan flash --kv-cache-memory-bytes 10XB", 2, "--kv-cache-memory-bytes '10XB'"},
      {"plan flash --max-num-seqs -3", 2, "--max-num-seqs '-3'"},
      {"plan flash --max-model-len 1G0", 2, "--max-model-len '1G0'"},
      {"plan flash --gpu-memory-utilization 1.5", 2, "--gpu-memory-utilization"},
      {"plan flash --gpus 8", 2, "--gpus"},
      {"plan flash --gpu h200 --expert-offload some", 2, "neither auto nor a number of GiB"},
      {"plan flash --expert-offload 20", 2, "--gpu"},
      {"plan flash --max-num-batched-tokens 20", 2, "--gpu"},
      {"plan flash --lengths 2M", 1, "2,097,152"},
      {"plan flash --indexer-cache-dtype fp32", 1, "fp32 is for both"},
      {"plan flush", 1, "no preset (fathom-nano, flash"},
      {"plan ../flash", 1, "../flash"},
      {"plan /dev/null", 1, ""},
      {"plan " FATHOM_SOURCE_DIR "/models", 1, "config.json"},
  };
  for (const Case& c : cases) {
    const Ran ran = Fathom(c.arguments);
    EXPECT_EQ(ran.status, c.status) << c.arguments << "\n" << ran.output;
    EXPECT_THAT(ran.output, HasSubstr(c.message)) << c.arguments;
  }
}

}  // namespace
}  // namespace fathom::cli
