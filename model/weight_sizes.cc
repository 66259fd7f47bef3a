#include "model/weight_sizes.h"

#include "checkpoint/catalogue.h"
#include "checkpoint/inventory.h"

namespace fathom {

WeightSizes WeightSizesOf(const ModelConfig& config) {
  WeightSizes sizes;
  sizes.num_experts = int64_t{config.num_layers} * config.num_experts;
  int64_t one_of_each_layer = 0;
  for (const ExpectedTensor& tensor : ExpectedMainTensors(config, /*max_experts=*/1)) {
    const auto bytes = static_cast<int64_t>(tensor.bytes());
    if (PartOf(tensor.name) == Part::kRoutedExperts) {
      one_of_each_layer += AlignedBytes(bytes);
      continue;
    }
    // Norm weights are widened when they are read.
    const bool widened = tensor.dtype == DType::kBF16 && tensor.shape.size() == 1;
    sizes.fixed_bytes += AlignedBytes(widened ? 2 * bytes : bytes);
  }
  sizes.expert_bytes = config.num_layers > 0 ? one_of_each_layer / config.num_layers : 0;
  return sizes;
}

}  // namespace fathom
