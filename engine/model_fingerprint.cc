#include "engine/model_fingerprint.h"

#include <span>
#include <string>
#include <type_traits>

namespace fathom {
namespace {

template <typename T>
void Append(std::string& bytes, const T& value) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void Append(std::string& bytes, TensorView<const float> values) {
  const auto elements = values.elements();
  bytes.append(reinterpret_cast<const char*>(elements.data()), elements.size_bytes());
}

// Values in a backend's memory.
Status AppendFrom(DeviceMemory& memory, TensorView<const float> values, std::string& bytes) {
  const size_t begin = bytes.size();
  bytes.resize(begin + static_cast<size_t>(values.size()) * sizeof(float));
  return memory.CopyOut(std::as_writable_bytes(std::span(bytes).subspan(begin)),
                        reinterpret_cast<const std::byte*>(values.data()));
}

}  // namespace

Result<PrefixKey> ModelFingerprint(const Model& model, Numerics numerics,
                                   const CacheLayout& layout) {
  const ModelConfig& c = model.config();
  std::string bytes = "fathom prefix 1";
  for (const int value : {c.vocab_size, c.hidden_size, c.num_layers, c.num_heads, c.head_dim,
                          c.rope_dim, c.index_num_heads, c.index_head_dim, c.index_topk, c.window,
                          c.num_experts, c.num_experts_per_token}) {
    Append(bytes, value);
  }
  for (const int ratio : layout.geometry().ratios) Append(bytes, ratio);
  Append(bytes, numerics);
  Append(bytes, model.quantises_o_proj_inputs());
  Append(bytes, layout.dtypes().attention);
  Append(bytes, layout.dtypes().indexer);
  const std::vector<float>& plain = model.rope_frequencies(false);
  const std::vector<float>& compressed = model.rope_frequencies(true);
  Append(bytes, {plain.data(), static_cast<int64_t>(plain.size())});
  Append(bytes, {compressed.data(), static_cast<int64_t>(compressed.size())});
  const ModelWeights& weights = model.weights();
  DeviceMemory& memory = model.backend().memory();
  FATHOM_RETURN_IF_ERROR(AppendFrom(memory, weights.norm, bytes));
  for (const LayerWeights& layer : weights.layers) {
    for (const TensorView<const float>& norm :
         {layer.attn_norm, layer.ffn_norm, layer.attn.q_norm, layer.attn.kv_norm}) {
      FATHOM_RETURN_IF_ERROR(AppendFrom(memory, norm, bytes));
    }
  }
  return PrefixSeed(bytes);
}

}  // namespace fathom
