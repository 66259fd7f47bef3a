// Synthetic checkpoints for tests: any geometry, in every dialect that Checkpoint::Open accepts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/synth.h"
#include "checkpoint/test_data.h"

namespace fathom::synth_test {

namespace fs = std::filesystem;

// The text of models/presets/<name>.json.
inline std::string Preset(const std::string& name) {
  return ReadText(SourceDir() / "models/presets" / (name + ".json"));
}

inline SynthPlan Plan(const std::string& config, const SynthOptions& options = {}) {
  auto plan = PlanSyntheticCheckpoint(config, "test", options);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  return plan.ok() ? std::move(plan).value() : SynthPlan{};
}

// Plans and writes; `config` is the text of a config.json.
inline Status Write(const std::string& config, const fs::path& directory,
                    const SynthOptions& options = {}, int num_threads = 2) {
  ThreadPool pool(num_threads);
  FATHOM_ASSIGN_OR_RETURN(const SynthPlan plan, PlanSyntheticCheckpoint(config, "test", options));
  return WriteSyntheticCheckpoint(plan, directory, options, pool);
}

// Name -> bytes of all tensors.
using Tensors = std::map<std::string, std::vector<std::byte>>;
inline Tensors ReadTensors(const fs::path& directory) {
  Tensors tensors;
  auto opened = Checkpoint::Open(directory);
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  if (!opened.ok()) return tensors;
  for (const StoredTensor& t : opened->tensors()) {
    tensors[t.name] = {t.data.begin(), t.data.end()};
  }
  return tensors;
}

inline std::vector<std::string> FileNames(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace fathom::synth_test
