#include "checkpoint/inventory.h"

#include <algorithm>
#include <string>

#include "checkpoint/catalogue.h"

namespace fathom {
namespace {

bool IsHashTable(const ExpectedTensor& tensor) { return tensor.dtype == DType::kI64; }

uint64_t Parameters(const ExpectedTensor& tensor) {
  switch (tensor.dtype) {
    case DType::kF8E8M0:
    case DType::kI64:
      return 0;
    case DType::kI8:
      return 2 * tensor.bytes();
    default:
      return tensor.bytes() / static_cast<uint64_t>(DTypeBytes(tensor.dtype));
  }
}

// The catalogue lists one routed expert per layer here, because all are alike: with every expert
// listed, a config alone could ask for gigabytes of names.
constexpr int kListedExperts = 1;

// How many tensors of the model a listed one stands for.
uint64_t Copies(const ModelConfig& config, const ExpectedTensor& tensor) {
  return PartOf(tensor.name) == Part::kRoutedExperts ? static_cast<uint64_t>(config.num_experts)
                                                     : 1;
}

// Adds tensors to the parts that they belong to.
class Counter {
 public:
  explicit Counter(const ModelConfig& config) : config_(config), parts_(kNumParts) {
    for (int i = 0; i < kNumParts; ++i) {
      parts_[static_cast<size_t>(i)].part = kParts[static_cast<size_t>(i)];
    }
  }

  void AddMain(const ExpectedTensor& tensor) {
    PartBytes& part = PartFor(tensor);
    const uint64_t copies = Copies(config_, tensor);
    uint64_t bytes_read = tensor.bytes();
    uint64_t active = Parameters(tensor);
    if (part.part == Part::kRoutedExperts) {
      bytes_read *= static_cast<uint64_t>(config_.num_experts_per_token);
      active *= static_cast<uint64_t>(config_.num_experts_per_token);
    } else if (part.part == Part::kEmbedding || IsHashTable(tensor)) {
      bytes_read /= static_cast<uint64_t>(config_.vocab_size);  // one row
    }
    part.main_bytes += copies * tensor.bytes();
    part.main_parameters += copies * Parameters(tensor);
    part.bytes_per_token += bytes_read;
    part.active_parameters += active;
  }
  void AddMtp(const ExpectedTensor& tensor) {
    PartBytes& part = PartFor(tensor);
    const uint64_t copies = Copies(config_, tensor);
    part.mtp_bytes += copies * tensor.bytes();
    part.mtp_parameters += copies * Parameters(tensor);
  }
  [[nodiscard]] const std::vector<PartBytes>& parts() const { return parts_; }

 private:
  PartBytes& PartFor(const ExpectedTensor& tensor) {
    return parts_[static_cast<size_t>(PartOf(tensor.name))];
  }
  const ModelConfig& config_;
  std::vector<PartBytes> parts_;
};

}  // namespace

std::string_view PartName(Part part) {
  switch (part) {
    case Part::kRoutedExperts:
      return "routed experts";
    case Part::kAttention:
      return "attention";
    case Part::kSharedExperts:
      return "shared experts";
    case Part::kEmbedding:
      return "embedding";
    case Part::kHead:
      return "head";
    case Part::kOther:
      return "other";
  }
  return "";
}

Part PartOf(std::string_view native_name) {
  const auto has = [native_name](std::string_view text) {
    return native_name.find(text) != std::string_view::npos;
  };
  if (native_name == "embed.weight") return Part::kEmbedding;
  if (native_name == "head.weight") return Part::kHead;
  if (has(".ffn.experts.")) return Part::kRoutedExperts;
  if (has(".ffn.shared_experts.")) return Part::kSharedExperts;
  if (has(".attn.")) return Part::kAttention;
  return Part::kOther;
}

std::vector<PartBytes> InventoryOf(const ModelConfig& config) {
  Counter counter(config);
  for (const ExpectedTensor& tensor : ExpectedMainTensors(config, kListedExperts)) {
    counter.AddMain(tensor);
  }
  for (int block = 0; block < static_cast<int>(config.mtp_compress_ratios.size()); ++block) {
    for (const ExpectedTensor& tensor : ExpectedMtpTensors(config, block, kListedExperts)) {
      counter.AddMtp(tensor);
    }
  }
  return counter.parts();
}

PartBytes Total(const std::vector<PartBytes>& parts) {
  PartBytes sum;
  for (const PartBytes& part : parts) {
    sum.main_bytes += part.main_bytes;
    sum.mtp_bytes += part.mtp_bytes;
    sum.main_parameters += part.main_parameters;
    sum.mtp_parameters += part.mtp_parameters;
    sum.bytes_per_token += part.bytes_per_token;
    sum.active_parameters += part.active_parameters;
  }
  return sum;
}

std::vector<DTypeTotal> DTypesOf(const ModelConfig& config) {
  std::vector<DTypeTotal> totals;
  const auto add = [&](const std::vector<ExpectedTensor>& tensors) {
    for (const ExpectedTensor& tensor : tensors) {
      auto total = std::find_if(totals.begin(), totals.end(),
                                [&](const DTypeTotal& t) { return t.dtype == tensor.dtype; });
      if (total == totals.end()) total = totals.insert(total, DTypeTotal{tensor.dtype, 0, 0});
      total->num_tensors += Copies(config, tensor);
      total->bytes += Copies(config, tensor) * tensor.bytes();
    }
  };
  add(ExpectedMainTensors(config, kListedExperts));
  for (int block = 0; block < static_cast<int>(config.mtp_compress_ratios.size()); ++block) {
    add(ExpectedMtpTensors(config, block, kListedExperts));
  }
  std::sort(totals.begin(), totals.end(),
            [](const DTypeTotal& a, const DTypeTotal& b) { return a.bytes > b.bytes; });
  return totals;
}

std::string CompactLayers(const std::vector<int>& layers) {
  // Length of the run from `first` whose numbers grow by `step`.
  const auto run = [&layers](size_t first, int step) {
    size_t last = first;
    while (last + 1 < layers.size() && layers[last + 1] == layers[last] + step) ++last;
    return last - first + 1;
  };
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    if (!text.empty()) text += ", ";
    size_t length = run(i, 1);
    if (length == 1 && run(i, 2) >= 3) {
      length = run(i, 2);
      text += layers[i] % 2 == 0 ? "even " : "odd ";
    }
    text += std::to_string(layers[i]);
    if (length > 1) text += "-" + std::to_string(layers[i + length - 1]);
    i += length;
  }
  return text;
}

uint64_t LayerBytes(const ModelConfig& config, int layer) {
  uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : ExpectedLayerTensors(config, layer, kListedExperts)) {
    bytes += tensor.bytes() * Copies(config, tensor);
  }
  return bytes;
}

}  // namespace fathom
