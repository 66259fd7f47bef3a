// Speed of a model without an engine around it: prompts of given lengths, one answer at given
// contexts, answers together; beside what the machine can read at most.
//
// Runs Model::Forward over real steps, in the chunks that `fathom serve` computes, on made-up
// tokens. Long contexts are copies of computed pages (bench/long_sequence.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/report.h"
#include "checkpoint/config.h"
#include "engine/engine_core.h"

namespace fathom::bench {

struct ModelBenchOptions {
  LocalEngineOptions engine;  // backend, threads, numerics, formats and rows of a step
  // Ascending. An empty list leaves its part out.
  std::vector<int64_t> prefill = {128, 512, 2048, 8192};                    // tokens of a prompt
  std::vector<int64_t> contexts = {128, 512, 2048, 8192, 32'768, 131'072};  // in front of an answer
  std::vector<int> batches = {1, 2, 4, 8, 16};                              // answers together
  std::vector<int64_t> graph_contexts;  // in front of answers with and without recorded steps
  std::vector<int64_t> lane_contexts;   // in front of answers with and without streams in parallel
  int64_t batch_context = 512;
  int64_t computed_tokens = 2048;  // of long contexts; then repeated; whole blocks
  int num_steps = 8;               // decode steps of a repetition
  int repeats = 5;
};

// Weights that are made where they are used (Checkpoint::Synthetic), for models without files.
struct SyntheticModel {
  std::string name;    // of the config, for the report
  ModelConfig config;  // MTP blocks are left out
  uint64_t seed = 1;
};

// Steps that are not measured in front of those that are: the first touches memory; a backend that
// records steps does one without, then records the next of its kind, and a kind ends where a
// context is a power of two.
inline constexpr int kWarmSteps = 3;

// kInvalidArgument for lengths beyond the model's positions, and for contexts nearer to each other
// than the steps of a measurement; kOutOfMemory where caches need more than is free. Errors of
// graph_contexts as BenchGraphs, of lane_contexts as BenchLanes.
Result<Report> BenchModel(const std::filesystem::path& model, const ModelBenchOptions& options);
// The same with such weights; on a device the report also sets the memory that the model takes
// against the plan's. kInvalidArgument for --weights other than mmap, since nothing is copied.
Result<Report> BenchModel(const SyntheticModel& model, const ModelBenchOptions& options);

}  // namespace fathom::bench
