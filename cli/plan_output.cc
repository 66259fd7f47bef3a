#include "cli/plan_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/numbers.h"
#include "engine/cuda_factory.h"

namespace fathom::cli {
namespace {

using Json = nlohmann::ordered_json;

// In the order in which tables show them: full class first.
constexpr CacheKind kKinds[] = {
    CacheKind::kC4Kv,    CacheKind::kC4IndexKeys,  CacheKind::kC128Kv,   CacheKind::kSwaKv,
    CacheKind::kC4State, CacheKind::kC4IndexState, CacheKind::kC128State};
constexpr CacheClass kClasses[] = {CacheClass::kFull, CacheClass::kSwa, CacheClass::kState4,
                                   CacheClass::kState128};

std::string_view KindName(CacheKind kind) {
  switch (kind) {
    case CacheKind::kSwaKv:
      return "window KV";
    case CacheKind::kC4Kv:
      return "c4 KV";
    case CacheKind::kC128Kv:
      return "c128 KV";
    case CacheKind::kC4IndexKeys:
      return "c4 index keys";
    case CacheKind::kC4State:
      return "c4 state";
    case CacheKind::kC128State:
      return "c128 state";
    case CacheKind::kC4IndexState:
      return "c4 index state";
  }
  return "";
}

std::string_view ClassName(CacheClass cache_class) {
  switch (cache_class) {
    case CacheClass::kFull:
      return "full";
    case CacheClass::kSwa:
      return "swa";
    case CacheClass::kState4:
      return "state4";
    case CacheClass::kState128:
      return "state128";
  }
  return "";
}

std::string DTypesName(CacheDTypes dtypes) {
  return fmt::format("{} + {} keys", CacheDTypeName(dtypes.attention),
                     CacheDTypeName(dtypes.indexer));
}

int64_t MainLayers(const ModelConfig& config, int ratio) {
  return std::count(config.compress_ratios.begin(), config.compress_ratios.end(), ratio);
}

int64_t SlabWaste(const CachePlanner& planner, CacheClass c) {
  return planner.slab_bytes() - planner.BlocksPerSlab(c) * planner.layout().BlockBytes(c);
}

void PrintPages(std::ostream& out, const CachePlanner& planner) {
  const CacheLayout& layout = planner.layout();
  out << fmt::format("\n{:<16}{:>8}{:>10}{:>15}{:>15}\n", "kind", "layers", "entry B",
                     "entries/page", "page B");
  for (const CacheKind kind : kKinds) {
    if (layout.NumLayers(kind) == 0) continue;
    const PageFormat format = layout.Format(kind);
    out << fmt::format("{:<16}{:>8}{:>10}{:>15}{:>15}\n", KindName(kind), layout.NumLayers(kind),
                       WithCommas(format.entry_bytes()), format.entries_per_page,
                       WithCommas(layout.PageBytes(kind)));
  }
  out << fmt::format("\n{:<16}{:>8}{:>10}{:>15}{:>15}\n", "class", "tokens", "in a slab",
                     "slab waste", "page block B");
  for (const CacheClass c : kClasses) {
    if (layout.BlockBytes(c) == 0) continue;
    out << fmt::format("{:<16}{:>8}{:>10}{:>13.1f} %{:>15}\n", ClassName(c),
                       CacheLayout::PositionsPerBlock(c), planner.BlocksPerSlab(c),
                       100.0 * static_cast<double>(SlabWaste(planner, c)) /
                           static_cast<double>(planner.slab_bytes()),
                       WithCommas(layout.BlockBytes(c)));
  }
  out << fmt::format("slab: {} B ({})\n", WithCommas(planner.slab_bytes()),
                     HumanBytes(planner.slab_bytes()));
}

void PrintLengths(std::ostream& out, const PlanReport& report) {
  out << "\nbytes of one sequence's entries, by format (main layers, without states and pages)\n"
      << fmt::format("{:>12}", "tokens");
  for (const CacheDTypes dtypes : kComparedDTypes) out << fmt::format("{:>18}", DTypesName(dtypes));
  out << fmt::format("{:>20}\n", "V3.2 style, bf16");
  for (const LengthPlan& plan : report.lengths) {
    out << fmt::format("{:>12}", WithCommas(plan.length));
    for (const int64_t bytes : plan.compared) out << fmt::format("{:>18}", WithCommas(bytes));
    out << fmt::format("{:>20}\n", WithCommas(plan.v32_style));
  }

  const int64_t sequences = report.options.max_num_seqs;
  out << fmt::format("\nthis cache ({}): what is set aside, and what decoding a token reads\n",
                     DTypesName(report.planner.layout().dtypes()))
      << fmt::format("{:>12}{:>18}{:>18}{:>18}{:>18}", "tokens", "with states", "in page blocks",
                     sequences == 1 ? "slabs for 1" : "slabs for " + WithCommas(sequences),
                     "read per token");
  if (report.cache_bytes) out << fmt::format("{:>15}", "how many fit");
  out << "\n";
  for (const LengthPlan& plan : report.lengths) {
    out << fmt::format("{:>12}{:>18}{:>18}{:>18}{:>18}", WithCommas(plan.length),
                       HumanBytes(plan.stored.total()), HumanBytes(plan.page_bytes),
                       HumanBytes(plan.slab_bytes), HumanBytes(plan.read.total()));
    if (report.cache_bytes) out << fmt::format("{:>15}", WithCommas(plan.num_fitting));
    out << "\n";
  }
}

void PrintWeights(std::ostream& out, const PlanReport& report) {
  const PartBytes total = Total(report.weights);
  out << fmt::format("\n{:<16}{:>22}{:>22}\n", "weights, B", "main layers", "MTP");
  const auto row = [&](std::string_view name, const PartBytes& part) {
    out << fmt::format("{:<16}{:>22}{:>22}\n", name,
                       WithCommas(static_cast<int64_t>(part.main_bytes)),
                       WithCommas(static_cast<int64_t>(part.mtp_bytes)));
  };
  for (const PartBytes& part : report.weights) row(PartName(part.part), part);
  row("sum", total);
  out << fmt::format("all: {}\n",
                     HumanBytes(static_cast<int64_t>(total.main_bytes + total.mtp_bytes)));
}

// Why this build does not run the model on the card; empty where it does, other programs' memory
// apart.
std::string_view WhyNot(const CardPlan& plan) {
  if (!HasCudaBackend()) return "this build computes on the CPU only";
  if (!plan.card.has_kernels) return "there are kernels for Hopper cards only";
  if (plan.memory.cache_bytes <= 0) return "weights and steps leave no room for a cache";
  return {};
}

void PrintCard(std::ostream& out, const PlanReport& report) {
  const CardPlan& plan = *report.card;
  out << fmt::format("\n{}: {} ({}), {:.0f} % of it used: {}\n", plan.card.title,
                     HumanBytes(plan.card.memory_bytes),
                     plan.card.measured ? "measured" : "total its driver reports",
                     100.0 * report.options.memory_share, HumanBytes(plan.usable_bytes));
  const auto line = [&](std::string_view what, int64_t bytes) {
    out << fmt::format("  {:<54}{:>12}\n", what, HumanBytes(bytes));
  };
  const MemoryPlan& memory = plan.memory;
  line("weights other than routed experts", memory.weights.fixed_bytes);
  line(fmt::format("routed experts on the card, {} of {}", WithCommas(memory.num_device_experts()),
                   WithCommas(memory.weights.num_experts)),
       plan.device_expert_bytes());
  line(fmt::format("steps of up to {} tokens", WithCommas(report.options.max_batched_tokens)),
       memory.step_bytes);
  line("left for the cache", memory.cache_bytes);
  line("routed experts in page-locked host memory", memory.host_weight_bytes);
  const int64_t wanted = report.options.cache_bytes.value_or(0);
  if (memory.cache_bytes >= 0 && wanted > memory.cache_bytes) {
    out << fmt::format("  That is less cache than the {} asked for.\n", HumanBytes(wanted));
  }
  if (memory.cache_bytes < 0) {
    out << (memory.num_device_experts() == 0
                ? "  The card is too small even without routed experts.\n"
                : "  The card is too small with as many routed experts.\n");
  }
  const std::string_view why_not = WhyNot(plan);
  out << fmt::format("  Arithmetic only{}{}.\n", why_not.empty() ? "" : ": ", why_not);
}

void PrintCache(std::ostream& out, const PlanReport& report) {
  const PlanOptions& options = report.options;
  const int64_t slabs = *report.cache_bytes / report.planner.slab_bytes();
  out << fmt::format("\ncache memory: {}, {} slabs. ", HumanBytes(*report.cache_bytes),
                     WithCommas(slabs));
  const std::string who =
      options.max_num_seqs == 1 ? "One sequence" : WithCommas(options.max_num_seqs) + " sequences";
  const std::string length = WithCommas(report.max_fitting_length);
  if (report.max_fitting_length == 0) {
    out << who << " cannot have a single token.\n";
  } else if (report.max_fitting_length < options.max_model_len) {
    out << fmt::format("{} can have {} tokens{}, not {}.\n", who, length,
                       options.max_num_seqs == 1 ? "" : " each", WithCommas(options.max_model_len));
  } else {
    out << fmt::format("{} can have {} tokens{}.\n", who, length,
                       options.max_num_seqs == 1 ? "" : " each");
  }
  out << fmt::format("{:<16}{:>20}\n", "class", "page blocks at most");
  for (const CacheClass c : kClasses) {
    if (report.planner.layout().BlockBytes(c) == 0) continue;
    out << fmt::format("{:<16}{:>20}\n", ClassName(c),
                       WithCommas(slabs * report.planner.BlocksPerSlab(c)));
  }
}

Json CacheJson(const CachePlanner& planner) {
  const CacheLayout& layout = planner.layout();
  Json json = {{"attention_dtype", CacheDTypeName(layout.dtypes().attention)},
               {"indexer_dtype", CacheDTypeName(layout.dtypes().indexer)},
               {"slab_bytes", planner.slab_bytes()}};
  for (const CacheKind kind : kKinds) {
    if (layout.NumLayers(kind) == 0) continue;
    const PageFormat format = layout.Format(kind);
    json["kinds"].push_back({{"kind", KindName(kind)},
                             {"class", ClassName(ClassOf(kind))},
                             {"layers", layout.NumLayers(kind)},
                             {"entry_bytes", format.entry_bytes()},
                             {"entries_per_page", format.entries_per_page},
                             {"page_bytes", layout.PageBytes(kind)}});
  }
  for (const CacheClass c : kClasses) {
    if (layout.BlockBytes(c) == 0) continue;
    json["classes"].push_back({{"class", ClassName(c)},
                               {"tokens_per_block", CacheLayout::PositionsPerBlock(c)},
                               {"block_bytes", layout.BlockBytes(c)},
                               {"blocks_per_slab", planner.BlocksPerSlab(c)},
                               {"slab_waste_bytes", SlabWaste(planner, c)}});
  }
  return json;
}

Json LengthJson(const LengthPlan& plan, const PlanReport& report) {
  Json json = {{"tokens", plan.length}, {"v32_style_bytes", plan.v32_style}};
  for (size_t i = 0; i < kComparedDTypes.size(); ++i) {
    json["entry_bytes"].push_back(
        {{"attention_dtype", CacheDTypeName(kComparedDTypes[i].attention)},
         {"indexer_dtype", CacheDTypeName(kComparedDTypes[i].indexer)},
         {"bytes", plan.compared[i]}});
  }
  json["stored_bytes"] = {{"window", plan.stored.window},
                          {"c4_kv", plan.stored.c4_kv},
                          {"c4_index_keys", plan.stored.c4_index_keys},
                          {"c128_kv", plan.stored.c128_kv},
                          {"state", plan.stored.state},
                          {"mtp_window", plan.stored.mtp_window},
                          {"total", plan.stored.total()}};
  json["page_block_bytes"] = plan.page_bytes;
  json["slab_bytes_for_max_num_seqs"] = plan.slab_bytes;
  json["read_bytes_per_token"] = {{"window", plan.read.window},
                                  {"c4_index_keys", plan.read.c4_index_keys},
                                  {"c4_chosen", plan.read.c4_chosen},
                                  {"c128_kv", plan.read.c128_kv},
                                  {"total", plan.read.total()}};
  if (report.cache_bytes) json["sequences_that_fit"] = plan.num_fitting;
  return json;
}

}  // namespace

void PrintPlan(std::ostream& out, const std::string& model, const ModelConfig& config,
               const PlanReport& report) {
  out << fmt::format("{}: {} layers ({} window only, {} c4a, {} c128a)", model, config.num_layers,
                     MainLayers(config, 0), MainLayers(config, 4), MainLayers(config, 128));
  if (const int mtp = report.planner.layout().geometry().num_mtp_layers; mtp > 0) {
    out << fmt::format(", {} MTP block{}", mtp, mtp == 1 ? "" : "s");
  }
  out << fmt::format(", {} positions\n", WithCommas(config.max_position_embeddings));
  PrintPages(out, report.planner);
  PrintLengths(out, report);
  PrintWeights(out, report);
  if (report.card) PrintCard(out, report);
  if (report.cache_bytes) PrintCache(out, report);
}

std::string PlanJson(const std::string& model, const ModelConfig& config,
                     const PlanReport& report) {
  const PlanOptions& options = report.options;
  Json json = {{"model", model},
               {"layers",
                {{"window_only", MainLayers(config, 0)},
                 {"c4a", MainLayers(config, 4)},
                 {"c128a", MainLayers(config, 128)},
                 {"mtp", report.planner.layout().geometry().num_mtp_layers}}},
               {"max_model_len", options.max_model_len},
               {"max_num_seqs", options.max_num_seqs},
               {"cache", CacheJson(report.planner)}};
  for (const LengthPlan& plan : report.lengths) {
    json["lengths"].push_back(LengthJson(plan, report));
  }
  for (const PartBytes& part : report.weights) {
    json["weights"].push_back({{"part", PartName(part.part)},
                               {"main_bytes", part.main_bytes},
                               {"mtp_bytes", part.mtp_bytes}});
  }
  if (report.card) {
    const CardPlan& plan = *report.card;
    json["gpu"] = {{"name", plan.card.name},
                   {"memory_bytes", plan.card.memory_bytes},
                   {"measured", plan.card.measured},
                   {"usable_bytes", plan.usable_bytes},
                   {"fixed_weight_bytes", plan.memory.weights.fixed_bytes},
                   {"experts", plan.memory.weights.num_experts},
                   {"experts_on_gpu", plan.memory.num_device_experts()},
                   {"expert_bytes_on_gpu", plan.device_expert_bytes()},
                   {"expert_bytes_on_host", plan.memory.host_weight_bytes},
                   {"step_bytes", plan.memory.step_bytes},
                   {"left_bytes", plan.memory.cache_bytes},
                   {"runs_in_this_build", WhyNot(plan).empty()}};
    if (const std::string_view why_not = WhyNot(plan); !why_not.empty()) {
      json["gpu"]["why_not"] = why_not;
    }
  }
  if (report.cache_bytes) {
    json["cache_memory"] = {{"bytes", *report.cache_bytes},
                            {"slabs", *report.cache_bytes / report.planner.slab_bytes()},
                            {"longest_for_max_num_seqs", report.max_fitting_length}};
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace fathom::cli
