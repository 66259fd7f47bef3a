#include "tests/golden/golden.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/formats.h"
#include "engine/local_engine.h"
#include "engine/plugin_factory.h"
#include "tests/plugin/example_plugin.h"

namespace fathom::golden {

Rig MakeRig(const std::filesystem::path& directory, const std::string& backend, Numerics numerics,
            int max_rows, int64_t max_positions, int num_threads) {
  Rig rig;
  Result<Checkpoint> checkpoint = Checkpoint::Open(directory);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  if (!checkpoint.ok()) return rig;
  rig.checkpoint = std::make_unique<Checkpoint>(std::move(checkpoint).value());
  Result<std::unique_ptr<Backend>> made = backend == "plugin"
                                              ? MakePluginBackend(TestedPlugin(), numerics)
                                              : MakeBackend(backend, numerics, num_threads);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  if (!made.ok()) return rig;
  rig.backend = std::move(made).value();
  Result<std::unique_ptr<Model>> model =
      Model::Create(*rig.checkpoint, *rig.backend, max_rows, max_positions);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  if (!model.ok()) return rig;
  rig.model = std::move(model).value();
  auto runner = SequenceRunner::Create(*rig.model, numerics, max_positions);
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  if (runner.ok()) rig.runner = std::move(runner).value();
  return rig;
}

std::vector<float> Floats(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  if (tensor->dtype == DType::kF32) {
    std::vector<float> values(tensor->data.size() / 4);
    std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
    return values;
  }
  EXPECT_EQ(tensor->dtype, DType::kBF16) << name;
  std::vector<float> values(tensor->data.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor->data.data() + 2 * i, 2);
    values[i] = Bf16ToFloat(bits);
  }
  return values;
}

std::vector<int32_t> Ints(const SafetensorsFile& file, const std::string& name) {
  const StoredTensor* tensor = file.Find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  EXPECT_EQ(tensor->dtype, DType::kI32) << name;
  std::vector<int32_t> values(tensor->data.size() / 4);
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

std::vector<float> AllLogits(Rig& rig, const std::vector<int32_t>& ids, int chunk,
                             ForwardObserver* observer) {
  const auto vocab = static_cast<size_t>(rig.model->config().vocab_size);
  std::vector<float> logits(ids.size() * vocab);
  rig.runner->Clear();
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(chunk)) {
    const size_t n = std::min(ids.size() - begin, static_cast<size_t>(chunk));
    const Status status =
        rig.runner->Step(std::span(ids).subspan(begin, n), SequenceRunner::Logits::kAll,
                         std::span(logits).subspan(begin * vocab, n * vocab), observer);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  return logits;
}

double RelativeError(std::span<const float> got, std::span<const float> want) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double delta = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    difference += delta * delta;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  // NaN anywhere must not look like agreement.
  if (!(difference >= 0.0)) return INFINITY;
  return norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

void SelectionRecorder::OnEntries(int layer, TensorView<const int32_t> chosen,
                                  TensorView<const int32_t> num_entries) {
  for (int64_t i = 0; i < chosen.dim(0); ++i) {
    const std::span<const int32_t> row =
        chosen.row(i).first(static_cast<size_t>(num_entries.elements()[static_cast<size_t>(i)]));
    entries[layer].emplace_back(row.begin(), row.end());
  }
}

void SelectionRecorder::OnRoute(int layer, TensorView<const int32_t> chosen,
                                TensorView<const float>) {
  for (int64_t i = 0; i < chosen.dim(0); ++i) {
    std::vector<int32_t> row(chosen.row(i).begin(), chosen.row(i).end());
    std::sort(row.begin(), row.end());
    experts[layer].push_back(std::move(row));
  }
}

std::vector<std::vector<int32_t>> GoldenSets(const SafetensorsFile& file, const std::string& name,
                                             size_t rows) {
  const std::vector<int32_t> flat = Ints(file, name);
  const size_t width = rows == 0 ? 0 : flat.size() / rows;
  std::vector<std::vector<int32_t>> sets(rows);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t k = 0; k < width; ++k) {
      if (flat[i * width + k] >= 0) sets[i].push_back(flat[i * width + k]);
    }
    std::sort(sets[i].begin(), sets[i].end());
  }
  return sets;
}

}  // namespace fathom::golden
