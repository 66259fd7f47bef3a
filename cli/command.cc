#include "cli/command.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

namespace fathom::cli {

int Fail(const Status& status) {
  std::cerr << "fathom: " << status.message() << "\n";
  return kExitFailed;
}

void AddModelOption(CLI::App& command, std::string& model) {
  command
      .add_option("-m,--model", model,
                  "Directory in the official layout, or org/name[@revision] in the local Hugging "
                  "Face cache (default: the bundled fathom-nano)")
      ->type_name("MODEL");
}

void AddModelOptions(CLI::App& command, ModelOptions& o) {
  AddModelOption(command, o.model);
  command.add_option("--backend", o.backend, "Where to compute")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  command
      .add_option("-t,--threads", o.num_threads,
                  "Threads that compute (default: OMP_NUM_THREADS, else one per processor)")
      ->check(CLI::Range(1, 1024));
  command
      .add_option("--max-model-len", o.max_model_len,
                  "Longest prompt plus answer, in tokens (default: the model's limit)")
      ->check(CLI::Range(int64_t{1}, int64_t{INT32_MAX}));
  command
      .add_option("--max-num-batched-tokens", o.max_batched_tokens,
                  "Prompt tokens computed in one step; changes speed and memory, never results")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
}

void AddSamplingOptions(CLI::App& command, SamplingOptions& o) {
  const char* group = "Sampling (defaults: the model's generation_config.json)";
  command.add_option("--temperature", o.temperature, "0 takes the most likely token each time")
      ->group(group);
  command
      .add_option("--top-p", o.top_p, "Draw from the likeliest tokens that hold this probability")
      ->group(group);
  command.add_option("--top-k", o.top_k, "Draw from this many likeliest tokens; 0 is off")
      ->group(group);
  command.add_option("--min-p", o.min_p, "Drop tokens less likely than this share of the best one")
      ->group(group);
  command.add_option("--presence-penalty", o.presence_penalty, "-2 to 2")->group(group);
  command.add_option("--frequency-penalty", o.frequency_penalty, "-2 to 2")->group(group);
  command.add_option("--repetition-penalty", o.repetition_penalty, "Above 0; 1 is off")
      ->group(group);
  command.add_option("--seed", o.seed, "Same seed, same answer")->group(group);
}

SamplingParams ToSamplingParams(const SamplingOptions& o, const SamplingParams& defaults) {
  SamplingParams p = defaults;
  p.temperature = o.temperature.value_or(p.temperature);
  p.top_p = o.top_p.value_or(p.top_p);
  p.top_k = o.top_k.value_or(p.top_k);
  p.min_p = o.min_p.value_or(p.min_p);
  p.presence_penalty = o.presence_penalty.value_or(p.presence_penalty);
  p.frequency_penalty = o.frequency_penalty.value_or(p.frequency_penalty);
  p.repetition_penalty = o.repetition_penalty.value_or(p.repetition_penalty);
  p.seed = o.seed;
  return p;
}

void AddThinkingOption(CLI::App& command, std::string& thinking) {
  command.add_option("--thinking", thinking, "How much to think before the answer")
      ->check(CLI::IsMember({"off", "high", "max"}))
      ->capture_default_str();
}

Result<std::string> ReadInput(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.good() && !file.eof()) return NotFound(path + ": cannot be read");
  return text;
}

}  // namespace fathom::cli
