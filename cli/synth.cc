// fathom synth: a checkpoint of random weights, of any geometry.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string_view>

#include "checkpoint/synth.h"
#include "cli/command.h"
#include "cli/preset.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "tokenizer/tokenizer.h"

namespace fathom::cli {
namespace {

struct Options {
  std::string directory;
  std::string preset = "tiny";
  GeometryChanges changes;
  std::string ratios;
  int num_threads = 0;
  SynthOptions synth;
};

// "0,4,128": entries only; which values a config takes is ParseModelConfig's matter.
Result<std::vector<int>> ParseRatios(std::string_view text) {
  std::vector<int> ratios;
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  while (true) {
    while (at != end && *at == ' ') ++at;
    int ratio = 0;
    const auto [next, error] = std::from_chars(at, end, ratio);
    if (error != std::errc()) break;
    ratios.push_back(ratio);
    at = next;
    while (at != end && *at == ' ') ++at;
    if (at == end) return ratios;
    if (*at++ != ',') break;
  }
  return InvalidArgument("--ratios " + std::string(text) +
                         ": expected one number per layer with commas between them");
}

Status CheckTokenizer(const SynthOptions& options, const ModelConfig& config) {
  if (options.tokenizer_directory.empty()) return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(options.tokenizer_directory));
  if (tokenizer.vocab_size() <= config.vocab_size) return OkStatus();
  return InvalidArgument(options.tokenizer_directory.string() + ": tokenizer.json has " +
                         std::to_string(tokenizer.vocab_size()) + " tokens, the model only " +
                         std::to_string(config.vocab_size) + " (--vocab)");
}

// A preset by name, or any config.json.
Result<std::filesystem::path> FindConfig(const std::string& preset) {
  std::error_code error;
  if (std::filesystem::is_regular_file(preset, error)) return std::filesystem::path(preset);
  return FindPreset(preset);
}

Status Run(Options o) {
  if (!o.ratios.empty()) {
    FATHOM_ASSIGN_OR_RETURN(o.changes.ratios, ParseRatios(o.ratios));
  }
  FATHOM_ASSIGN_OR_RETURN(const std::filesystem::path preset, FindConfig(o.preset));
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadInput(preset.string()));
  FATHOM_ASSIGN_OR_RETURN(const std::string config,
                          ChangeGeometry(text, preset.string(), o.changes));
  FATHOM_ASSIGN_OR_RETURN(const SynthPlan plan,
                          PlanSyntheticCheckpoint(config, preset.string(), o.synth));
  FATHOM_RETURN_IF_ERROR(CheckTokenizer(o.synth, plan.config));

  const auto start = std::chrono::steady_clock::now();
  {
    ThreadPool pool(o.num_threads > 0 ? o.num_threads : DefaultThreadCount());
    ProgressBar progress("writing");
    const InterruptGuard interrupt;
    o.synth.cancel = &interrupt.flag();
    o.synth.on_progress = [&](uint64_t done, uint64_t total) { progress.Update(done, total); };
    FATHOM_RETURN_IF_ERROR(WriteSyntheticCheckpoint(plan, o.directory, o.synth, pool));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const double megabytes = static_cast<double>(plan.total_bytes) / 1e6;
  std::printf("%s: %zu tensors, %.1f MB in %zu shards, %.2f s (%.0f MB/s)\n", o.directory.c_str(),
              plan.num_tensors, megabytes, plan.shards.size(), took.count(),
              megabytes / took.count());
  return OkStatus();
}

}  // namespace

void AddSynthCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("synth", "Write a checkpoint of random weights, of any geometry");
  command->add_option("dir", o->directory, "Where to; made if needed")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("-p,--preset", o->preset,
                   "Geometry to begin with: flash, pro, mid (3 GB), nano, tiny or a config.json")
      ->capture_default_str();
  const char* geometry = "Geometry (default: the preset's)";
  for (const GeometryField& field : GeometryFields()) {
    command
        ->add_option(std::string("--") + field.option, o->changes.*field.member,
                     std::string(field.json) + " of config.json")
        ->group(geometry);
  }
  command
      ->add_option("--ratios", o->ratios,
                   "Compression of each layer, e.g. 0,0,4,128; sets the number of layers")
      ->group(geometry);
  command->add_flag("--mtp,!--no-mtp", o->changes.mtp, "With one MTP block, or without")
      ->group(geometry);
  command->add_option("--seed", o->synth.seed, "Same geometry and seed, same bytes")
      ->capture_default_str();
  command
      ->add_option("--max-shard-size", o->synth.max_shard_bytes,
                   "Cut layers above this into several files (default: one file per layer)")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  command
      ->add_option("--tokenizer", o->synth.tokenizer_directory,
                   "Copy tokenizer.json and tokenizer_config.json from here (default: none)")
      ->type_name("DIR");
  command->add_flag("--force", o->synth.overwrite, "Replace the checkpoint that is there");
  command
      ->add_option("-t,--threads", o->num_threads,
                   "Threads (default: OMP_NUM_THREADS, else one per processor)")
      ->check(CLI::Range(1, 1024));
  command->footer(
      "Weights are random: answers are noise, speed and memory are those of a real model.\n"
      "Examples:\n"
      "  fathom synth /tmp/mid --preset mid\n"
      "  fathom synth /tmp/deep --preset nano --layers 61 --experts 32 --seed 7\n"
      "  fathom synth /tmp/chat --tokenizer models/fathom-nano");
  command->callback([o, &action] {
    action = [o] {
      const Status status = Run(*o);
      if (status.code() == StatusCode::kCancelled) {
        Fail(status);
        return kExitInterrupted;
      }
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace fathom::cli
