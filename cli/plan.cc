// fathom plan: cache and weight bytes of a model, from its config alone.
#include <iostream>
#include <memory>
#include <utility>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/numbers.h"
#include "cli/plan_output.h"
#include "cli/plan_report.h"
#include "cli/preset.h"

namespace fathom::cli {
namespace {

// Far beyond any machine, and small enough that sums of a few stay in int64.
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostSequences = 1 << 20;

// Values as given; Parse() turns them into PlanOptions.
struct Options {
  std::string model;
  std::vector<std::string> lengths;
  std::string attention_dtype = "auto";
  std::string indexer_dtype = "auto";
  std::string cache_bytes, max_model_len, max_num_seqs, gpu, expert_offload;
  int max_batched_tokens = PlanOptions{}.max_batched_tokens;
  double memory_share = PlanOptions{}.memory_share;
  bool no_mtp = false;
  bool json = false;
};

Result<PlanOptions> Parse(const Options& o) {
  PlanOptions plan;
  for (const std::string& length : o.lengths) {
    FATHOM_ASSIGN_OR_RETURN(const int64_t value, ParseCount(length, "--lengths", INT32_MAX));
    plan.lengths.push_back(value);
  }
  FATHOM_ASSIGN_OR_RETURN(plan.dtypes.attention, ParseAttentionCacheDType(o.attention_dtype));
  FATHOM_ASSIGN_OR_RETURN(plan.dtypes.indexer, ParseIndexerCacheDType(o.indexer_dtype));
  // Left to itself the indexer cache goes with an exact attention cache.
  if (o.indexer_dtype == "auto" && plan.dtypes.attention == CacheDType::kF32) {
    plan.dtypes = DefaultCacheDTypes(Numerics::kExact);
  }
  if (!o.cache_bytes.empty()) {
    FATHOM_ASSIGN_OR_RETURN(plan.cache_bytes,
                            ParseCount(o.cache_bytes, "--kv-cache-memory-bytes", kMostBytes));
  }
  if (!o.max_model_len.empty()) {
    FATHOM_ASSIGN_OR_RETURN(plan.max_model_len,
                            ParseCount(o.max_model_len, "--max-model-len", INT32_MAX));
  }
  if (!o.max_num_seqs.empty()) {
    FATHOM_ASSIGN_OR_RETURN(plan.max_num_seqs,
                            ParseCount(o.max_num_seqs, "--max-num-seqs", kMostSequences));
  }
  if (!o.gpu.empty()) {
    FATHOM_ASSIGN_OR_RETURN(plan.card, FindCard(o.gpu));
  }
  if (!o.expert_offload.empty()) {
    FATHOM_ASSIGN_OR_RETURN(plan.expert_offload, ParseExpertOffload(o.expert_offload));
  }
  plan.max_batched_tokens = o.max_batched_tokens;
  plan.memory_share = o.memory_share;
  plan.mtp = !o.no_mtp;
  return plan;
}

int Run(const Options& o, const PlanOptions& plan) {
  auto config = ReadConfig(o.model.empty() ? kBundledModel : o.model);
  if (!config.ok()) return Fail(config.status());
  auto report = MakePlan(*config, plan);
  if (!report.ok()) return Fail(report.status());
  const std::string model = o.model.empty() ? kBundledModel : o.model;
  if (o.json) {
    std::cout << PlanJson(model, *config, *report) << "\n";
  } else {
    PrintPlan(std::cout, model, *config, *report);
  }
  return 0;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plan", "Work out cache and weight memory of a model");
  command->add_option(
      "model,-m,--model", o->model,
      "Directory, config.json, preset (flash, pro) or org/name in the local Hugging "
      "Face cache (default: the bundled fathom-nano). Weights are not read");
  command->add_option("--lengths", o->lengths, "Sequence lengths, as in 4096,64K,1M")
      ->delimiter(',');
  command
      ->add_option("--kv-cache-dtype", o->attention_dtype,
                   "Format of attention entries: auto, fp8, bf16, fp32")
      ->capture_default_str();
  command
      ->add_option("--indexer-cache-dtype", o->indexer_dtype,
                   "Format of index keys: auto, fp4, fp8, bf16, fp32")
      ->capture_default_str();
  command->add_option("--kv-cache-memory-bytes", o->cache_bytes,
                      "Memory for the cache, as in 20G: show how many sequences fit");
  command->add_option("--max-model-len", o->max_model_len,
                      "Longest sequence (default: the model's limit)");
  command->add_option("--max-num-seqs", o->max_num_seqs,
                      "Sequences of that length to have room for at once (default: 1)");
  command->add_option("--gpu", o->gpu,
                      "Lay the model out on a card, as in h200, as the loader would");
  command
      ->add_option("--gpu-memory-utilization", o->memory_share,
                   "Share of the card for weights, activations and cache")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  CLI::Option* const gpu = command->get_option("--gpu");
  command
      ->add_option("--max-num-batched-tokens", o->max_batched_tokens,
                   "Tokens of a step on the card")
      ->transform(Count(1, 65536))
      ->capture_default_str()
      ->needs(gpu);
  AddExpertOffloadOption(*command, o->expert_offload);
  command->get_option("--expert-offload")->needs(gpu);
  command->add_flag("--no-mtp", o->no_mtp, "Leave out MTP blocks");
  command->add_flag("--json", o->json, "Print one JSON object");
  command->footer(
      "Examples:\n"
      "  fathom plan flash\n"
      "  fathom plan pro --gpu h200 --lengths 64K,1M\n"
      "  fathom plan flash --gpu h200 --max-model-len 128K --expert-offload 40\n"
      "  fathom plan DIR/config.json --kv-cache-memory-bytes 20G --max-num-seqs 8 --json");
  command->callback([o, &action] {
    const Result<PlanOptions> plan = Parse(*o);
    if (!plan.ok())
      throw CLI::ValidationError(plan.status().message(), CLI::ExitCodes::ValidationError);
    action = [o, plan = *plan] { return Run(*o, plan); };
  });
}

}  // namespace fathom::cli
