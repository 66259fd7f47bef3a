// fathom bench: figures of models, planning, cache, conversations, long contexts, many streams and
// servers.
#include <algorithm>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "bench/cache_bench.h"
#include "bench/context_bench.h"
#include "bench/fusion_bench.h"
#include "bench/model_bench.h"
#include "bench/ops_bench.h"
#include "bench/step_bench.h"
#include "bench/streams_bench.h"
#include "bench/turns_bench.h"
#include "cli/arguments.h"
#include "cli/bench_serve.h"
#include "cli/command.h"
#include "cli/loaded_model.h"
#include "cli/numbers.h"
#include "cli/preset.h"
#include "cli/progress.h"

namespace fathom::cli {
namespace {

using bench::Report;

int Print(const Result<Report>& report, bool json) {
  if (!report.ok()) return Fail(report.status());
  if (json) {
    std::cout << bench::ReportJson(*report) << "\n";
  } else {
    bench::PrintReport(std::cout, *report);
  }
  return 0;
}

// Where only a config was read the benchmark does not know what it was called.
Result<Report> Named(Result<Report> report, const std::string& model) {
  if (report.ok()) report->conditions.emplace_back("model", model);
  return report;
}

template <typename T>
void AddCount(CLI::App& command, const std::string& name, T& value, int64_t min, int64_t max,
              const std::string& help) {
  command.add_option(name, value, help)->transform(Count(min, max))->capture_default_str();
}

// A list such as 4096,64K,1M.
template <typename T>
void AddCounts(CLI::App& command, const std::string& name, std::vector<T>& values, int64_t max,
               const std::string& help) {
  command.add_option(name, values, help)
      ->delimiter(',')
      ->transform(Count(1, max))
      ->capture_default_str();
}

// Ascending, each once.
template <typename T>
void Sort(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
constexpr int kMostRepeats = 1000;

void AddJson(CLI::App& command, bool& json) {
  command.add_flag("--json", json, "Print one JSON object");
}

void AddRepeats(CLI::App& command, int& repeats) {
  AddCount(command, "--repeats", repeats, 1, kMostRepeats,
           "Repetitions; median, lowest and highest are shown");
}

void AddConfigOption(CLI::App& command, std::string& model) {
  command
      .add_option(
          "-m,--model", model,
          "Geometry: a directory, config.json, preset (flash, pro) or org/name in the local "
          "Hugging Face cache. Weights are not read")
      ->capture_default_str();
}

void AddShapesOption(CLI::App& command, std::string& shapes) {
  command
      .add_option("--shapes", shapes,
                  "Sizes: a preset (flash, pro, mid, nano), a directory, config.json or org/name "
                  "in the local Hugging Face cache. Weights are not read")
      ->capture_default_str();
}

// What the benchmarks that run a model share.
struct EngineOptions {
  ModelOptions model;
  CacheOptions cache;

  void AddOptions(CLI::App& command) {
    AddModelOption(command, model.model);
    AddBackendOptions(command, model);
    AddCacheOptions(command, cache);
  }
  // Resolves the model and checks the options.
  Result<std::filesystem::path> Read(LocalEngineOptions& engine) const {
    FATHOM_ASSIGN_OR_RETURN(engine, ToEngineOptions(model, cache));
    return ResolveModel(model.model);
  }
};

// Each AddX declares a benchmark; its state lives as long as the action.
void AddStep(CLI::App& bench, Action& action) {
  struct Options {
    std::string model = "flash";
    bench::StepBenchOptions bench;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("step", "Planning of a decode step of many sequences");
  AddConfigOption(*command, o->model);
  AddCount(*command, "--sequences", o->bench.num_sequences, 1, 4096, "Sequences that decode");
  AddCounts(*command, "--contexts", o->bench.contexts, kMostTokens, "Tokens of each");
  AddCount(*command, "--steps", o->bench.num_steps, 1, 65'536, "Steps of a repetition");
  AddRepeats(*command, o->bench.repeats);
  AddJson(*command, o->json);
  command->callback([o, &action] {
    action = [o] {
      Sort(o->bench.contexts);
      const Result<ModelConfig> config = ReadConfig(o->model);
      if (!config.ok()) return Fail(config.status());
      return Print(Named(BenchStep(*config, o->bench), o->model), o->json);
    };
  });
}

void AddCache(CLI::App& bench, Action& action) {
  struct Options {
    std::string model = "flash";
    bench::CacheBenchOptions bench;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("cache", "Operations of the block manager");
  AddConfigOption(*command, o->model);
  AddCount(*command, "--sequences", o->bench.num_sequences, 1, 65'536, "Sequences that decode");
  AddCount(*command, "--tokens", o->bench.sequence_tokens, 1, kMostTokens, "Tokens of each");
  AddCount(*command, "--long-tokens", o->bench.long_tokens, 256, kMostTokens,
           "Tokens of the one long prompt");
  AddCount(*command, "--requests", o->bench.num_short_requests, 1, 100'000,
           "Requests that come and go in full memory");
  AddCount(*command, "--resume-points", o->bench.max_resume_points, 100, 10'000,
           "Most short prompts to look one up among");
  AddRepeats(*command, o->bench.repeats);
  AddJson(*command, o->json);
  command->callback([o, &action] {
    action = [o] {
      const Result<ModelConfig> config = ReadConfig(o->model);
      if (!config.ok()) return Fail(config.status());
      return Print(Named(BenchCache(*config, o->bench), o->model), o->json);
    };
  });
}

void AddTurns(CLI::App& bench, Action& action) {
  struct Options {
    EngineOptions engine;
    bench::TurnsBenchOptions bench;
    bool without_cache = true;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("turns", "A conversation on a long system prompt");
  AddCount(*command, "--turns", o->bench.turns, 1, 10'000, "Turns");
  AddCount(*command, "--system-tokens", o->bench.system_tokens, 1, kMostTokens,
           "Tokens of the system prompt");
  AddCount(*command, "--question-tokens", o->bench.question_tokens, 1, kMostTokens,
           "Tokens of each question");
  AddCount(*command, "--answer-tokens", o->bench.answer_tokens, 1, kMostTokens,
           "Tokens of each answer");
  AddCount(*command, "--uncached-turns", o->bench.turns_without_cache, 1, 10'000,
           "Turns of the conversation without prefix caching");
  command->add_flag("!--no-uncached", o->without_cache, "Leave that conversation out");
  o->engine.AddOptions(*command);
  AddJson(*command, o->json);
  command->callback([o, &action] {
    action = [o] {
      if (!o->without_cache) o->bench.turns_without_cache = 0;
      const auto model = o->engine.Read(o->bench.engine);
      if (!model.ok()) return Fail(model.status());
      return Print(BenchTurns(*model, o->bench), o->json);
    };
  });
}

void AddContext(CLI::App& bench, Action& action) {
  struct Options {
    EngineOptions engine;
    bench::ContextBenchOptions bench;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand("context", "One request at the longest context");
  AddCounts(*command, "--depths", o->bench.depths, kMostTokens,
            "Positions at which a decode step is timed");
  AddCount(*command, "--computed-tokens", o->bench.computed_tokens, 256, kMostTokens,
           "Tokens that are computed and then repeated; a multiple of 256");
  AddCount(*command, "--steps", o->bench.num_steps, 1, 65'536, "Steps at each depth");
  // No cache options: the cache is that of one sequence of the deepest length.
  AddModelOption(*command, o->engine.model.model);
  AddBackendOptions(*command, o->engine.model);
  AddCacheFormatOptions(*command, o->engine.cache);
  AddJson(*command, o->json);
  command->callback([o, &action] {
    action = [o] {
      Sort(o->bench.depths);
      const auto model = o->engine.Read(o->bench.engine);
      if (!model.ok()) return Fail(model.status());
      return Print(BenchContext(*model, o->bench), o->json);
    };
  });
}

// The first `layers` layers of a config, all where it is 0.
Result<ModelConfig> FirstLayers(ModelConfig config, int layers) {
  if (layers == 0) return config;
  if (layers > config.num_layers) {
    return InvalidArgument("--layers " + std::to_string(layers) + ": the model has " +
                           std::to_string(config.num_layers));
  }
  config.num_layers = layers;
  config.num_hash_layers = std::min(config.num_hash_layers, layers);
  config.compress_ratios.resize(static_cast<size_t>(layers));
  return config;
}

Result<Report> BenchSynthetic(const EngineOptions& engine, const std::string& name, int layers,
                              uint64_t seed, bench::ModelBenchOptions& options) {
  FATHOM_ASSIGN_OR_RETURN(options.engine, ToEngineOptions(engine.model, engine.cache));
  bench::SyntheticModel model;
  FATHOM_ASSIGN_OR_RETURN(model.config, ReadConfig(name));
  FATHOM_ASSIGN_OR_RETURN(model.config, FirstLayers(std::move(model.config), layers));
  model.name = name;
  model.seed = seed;
  std::optional<ProgressBar> progress(std::in_place, "making weights");
  options.engine.load_progress = [&](uint64_t done, uint64_t total) {
    if (progress) progress->Update(done, total);
    if (done == total) progress.reset();
  };
  return BenchModel(model, options);
}

void AddModel(CLI::App& bench, Action& action) {
  struct Options {
    EngineOptions engine;
    bench::ModelBenchOptions bench;
    std::vector<std::string> parts;
    std::string synthetic;  // empty: weights of --model
    int layers = 0;         // 0: all
    uint64_t seed = 1;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("model", "Prompts, one answer and answers together, and the machine");
  AddCounts(*command, "--prefill", o->bench.prefill, kMostTokens, "Tokens of prompts");
  AddCounts(*command, "--contexts", o->bench.contexts, kMostTokens,
            "Tokens in front of the one answer");
  AddCounts(*command, "--batch", o->bench.batches, 4096, "Numbers of answers together");
  AddCount(*command, "--batch-context", o->bench.batch_context, 2, kMostTokens,
           "Tokens in front of those");
  command
      ->add_option("--parts", o->parts,
                   "What to measure (default: prefill, decode, batch); graphs: answers without and "
                   "with recorded steps, on a backend that records some; streams: with one stream "
                   "and with two, on a backend that has them")
      ->delimiter(',')
      ->check(CLI::IsMember({"prefill", "decode", "batch", "graphs", "streams"}));
  AddCount(*command, "--computed-tokens", o->bench.computed_tokens, 256, kMostTokens,
           "Tokens of a long context that are computed and then repeated; a multiple of 256");
  AddCount(*command, "--steps", o->bench.num_steps, 1, 65'536, "Decode steps of a repetition");
  AddRepeats(*command, o->bench.repeats);
  // No cache options: the caches are those of what is measured.
  AddModelOption(*command, o->engine.model.model);
  CLI::Option* const synthetic = command->add_option(
      "--synthetic", o->synthetic,
      "In place of --model: random weights of this geometry (a preset as flash or pro, a directory "
      "or config.json), made where they are used; no checkpoint is read");
  synthetic->excludes(command->get_option("--model"));
  command
      ->add_option("--layers", o->layers,
                   "Only the first so many layers of --synthetic (default: all)")
      ->check(CLI::Range(1, 1024))
      ->needs(synthetic);
  AddCount(*command, "--weights-seed", o->seed, 1, std::numeric_limits<int64_t>::max(),
           "What the weights of --synthetic follow from");
  command->get_option("--weights-seed")->needs(synthetic);
  AddBackendOptions(*command, o->engine.model);
  AddCacheFormatOptions(*command, o->engine.cache);
  AddJson(*command, o->json);
  command->callback([o, command, &action] {
    action = [o, command] {
      const auto wants = [&](const std::string& part) {
        if (o->parts.empty()) return part != "graphs" && part != "streams";
        return std::find(o->parts.begin(), o->parts.end(), part) != o->parts.end();
      };
      const bool prefill = wants("prefill"), decode = wants("decode"), batch = wants("batch");
      const bool graphs = wants("graphs"), streams = wants("streams");
      const bool answers = decode || graphs || streams;
      // An option that would change nothing is a mistake.
      const std::vector<std::pair<const char*, bool>> used = {{"--prefill", prefill},
                                                              {"--contexts", answers},
                                                              {"--batch", batch},
                                                              {"--batch-context", batch},
                                                              {"--computed-tokens", answers},
                                                              {"--steps", answers || batch}};
      for (const auto& [option, is_used] : used) {
        if (!is_used && command->count(option) > 0) {
          return Fail(InvalidArgument(std::string(option) + ": belongs to none of --parts"));
        }
      }
      if (!prefill) o->bench.prefill.clear();
      Sort(o->bench.contexts);
      if (graphs) o->bench.graph_contexts = o->bench.contexts;
      if (streams) o->bench.lane_contexts = o->bench.contexts;
      if (!decode) o->bench.contexts.clear();
      if (!batch) o->bench.batches.clear();
      Sort(o->bench.prefill);
      Sort(o->bench.batches);
      if (!o->synthetic.empty()) {
        return Print(BenchSynthetic(o->engine, o->synthetic, o->layers, o->seed, o->bench),
                     o->json);
      }
      const auto model = o->engine.Read(o->bench.engine);
      if (!model.ok()) return Fail(model.status());
      return Print(BenchModel(*model, o->bench), o->json);
    };
  });
}

void AddOps(CLI::App& bench, Action& action) {
  struct Options {
    std::string shapes = "flash";
    std::string isa = "auto";
    std::string activations = "official";
    std::string o_proj_activations = "bf16";
    bench::OpsBenchOptions bench;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("ops", "Operations of a backend one by one, and the machine");
  AddShapesOption(*command, o->shapes);
  AddComputeOptions(*command, o->bench.backend, o->bench.backend_plugin, o->bench.num_threads,
                    o->isa);
  AddActivationsOption(*command, o->activations);
  AddOProjActivationsOption(*command, o->o_proj_activations);
  AddCounts(*command, "--rows", o->bench.rows, 65'536, "Tokens of the step, all of one sequence");
  command->add_option("--only", o->bench.only, "Operations (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(bench::OperationNames()));
  AddCount(*command, "--context", o->bench.context, 1, kMostTokens, "Tokens in front of the step");
  AddCount(*command, "--memory", o->bench.memory_bytes, 1, int64_t{1} << 40,
           "Bytes of weights, a quarter for each format; those of a quarter of this should not fit "
           "into a cache");
  AddRepeats(*command, o->bench.repeats);
  AddCount(*command, "--time-ms", o->bench.time_ms, 1, 60'000,
           "Repetitions go on until this time is over");
  AddJson(*command, o->json);
  command->callback([o, &action] {
    action = [o] {
      Sort(o->bench.rows);
      const Result<ModelConfig> config = ReadConfig(o->shapes);
      if (!config.ok()) return Fail(config.status());
      o->bench.backend = BackendName(o->bench.backend, o->bench.backend_plugin);
      if (const Status status = UseIsa(o->isa, o->bench.backend); !status.ok()) return Fail(status);
      o->bench.cpu.int8_activations = o->activations == "int8";
      o->bench.fp8_o_proj_inputs = o->o_proj_activations == "fp8";
      return Print(Named(BenchOps(*config, o->bench), o->shapes), o->json);
    };
  });
}

void AddFusions(CLI::App& bench, Action& action) {
  struct Options {
    std::string shapes = "flash";
    bench::FusionBenchOptions bench;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "fusions", "Fused operations of the cuda backend against the same work in small kernels");
  AddShapesOption(*command, o->shapes);
  command->add_option("--backend", o->bench.backend, "cuda: no other has them")
      ->check(CLI::IsMember({"cpu", "cuda", "reference"}))
      ->capture_default_str();
  AddCounts(*command, "--rows", o->bench.rows, 65'536, "Tokens of the step, all of one sequence");
  AddCount(*command, "--context", o->bench.context, 1, kMostTokens, "Tokens in front of the step");
  AddRepeats(*command, o->bench.repeats);
  AddJson(*command, o->json);
  command->callback([o, &action] {
    action = [o] {
      Sort(o->bench.rows);
      const Result<ModelConfig> config = ReadConfig(o->shapes);
      if (!config.ok()) return Fail(config.status());
      return Print(Named(BenchFusions(*config, o->bench), o->shapes), o->json);
    };
  });
}

void AddStreams(CLI::App& bench, Action& action) {
  struct Options {
    EngineOptions engine;
    bench::StreamsBenchOptions bench;
    std::optional<bool> async;
    bool json = false;
  };
  auto o = std::make_shared<Options>();
  CLI::App* command =
      bench.add_subcommand("streams", "Requests that decode together, against one large batch");
  AddCounts(*command, "--streams", o->bench.streams, 4096, "Numbers of requests");
  AddCount(*command, "--prompt-tokens", o->bench.prompt_tokens, 1, kMostTokens,
           "Tokens of each prompt");
  AddCount(*command, "--output-tokens", o->bench.output_tokens, 2, kMostTokens,
           "Tokens of each answer");
  AddRepeats(*command, o->bench.repeats);
  o->engine.AddOptions(*command);
  AddAsyncOption(*command, o->async);
  AddJson(*command, o->json);
  command->callback([o, &action] {
    action = [o] {
      Sort(o->bench.streams);
      const auto model = o->engine.Read(o->bench.engine);
      if (!model.ok()) return Fail(model.status());
      o->bench.engine.async_scheduling = o->async;
      return Print(BenchStreams(*model, o->bench), o->json);
    };
  });
}

}  // namespace

void AddBenchCommand(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand("bench", "Measure parts of fathom, or a running server");
  bench->require_subcommand(1);
  AddModel(*bench, action);
  AddOps(*bench, action);
  AddFusions(*bench, action);
  AddStep(*bench, action);
  AddTurns(*bench, action);
  AddContext(*bench, action);
  AddStreams(*bench, action);
  AddCache(*bench, action);
  AddBenchServe(*bench, action);
  bench->footer(
      "Figures of a release build; docs/benchmarks.md explains them.\n"
      "Examples:\n"
      "  fathom bench model --prefill 2K --contexts 512,32K --parts prefill,decode\n"
      "  fathom bench model --synthetic flash --backend cuda --parts decode --contexts 512\n"
      "  fathom bench ops --shapes flash --rows 1,16 --only linear,moe\n"
      "  fathom bench fusions --backend cuda --shapes flash --rows 1,512\n"
      "  fathom bench step --sequences 256 --contexts 4096,1M\n"
      "  fathom bench streams --streams 1,8,32 --json");
}

}  // namespace fathom::cli
