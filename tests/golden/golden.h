// The golden checkpoints and their expected values: how to run them and what to compare.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "engine/sequence_runner.h"
#include "tests/test_data.h"

namespace fathom::golden {

// A loaded checkpoint with a backend and one sequence, ready to take tokens.
struct Rig {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<SequenceRunner> runner;
};

// `backend` as MakeBackend takes it, or "plugin": the tested plug-in. Fails the test and returns
// an empty rig on error.
Rig MakeRig(const std::filesystem::path& directory, const std::string& backend, Numerics numerics,
            int max_rows, int64_t max_positions, int num_threads = 2);

std::vector<float> Floats(const SafetensorsFile& file, const std::string& name);  // F32 or BF16
std::vector<int32_t> Ints(const SafetensorsFile& file, const std::string& name);

// Runs `ids` in steps of `chunk` tokens; returns logits [ids, vocab].
std::vector<float> AllLogits(Rig& rig, const std::vector<int32_t>& ids, int chunk,
                             ForwardObserver* observer = nullptr);

// 2-norm of the difference over 2-norm of `want`.
double RelativeError(std::span<const float> got, std::span<const float> want);

// Collects the selected entries and experts of every layer, over all steps.
class SelectionRecorder : public ForwardObserver {
 public:
  void OnEntries(int layer, TensorView<const int32_t> entries,
                 TensorView<const int32_t> num_entries) override;
  void OnRoute(int layer, TensorView<const int32_t> experts,
               TensorView<const float> weights) override;

  std::map<int, std::vector<std::vector<int32_t>>> entries;  // by layer: per token, ascending
  std::map<int, std::vector<std::vector<int32_t>>> experts;  // by layer: per token, ascending
};

// Rows of a golden index tensor as sets: ascending, padding removed.
std::vector<std::vector<int32_t>> GoldenSets(const SafetensorsFile& file, const std::string& name,
                                             size_t rows);

}  // namespace fathom::golden
