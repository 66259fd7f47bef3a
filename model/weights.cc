#include "model/weights.h"

#include <cstring>
#include <string>

#include "base/formats.h"

namespace fathom {

// Reads tensors by name. The first problem is kept and ends the build; after it the reader returns
// empty views, so that call sites stay one line each.
class WeightReader {
 public:
  WeightReader(const Checkpoint& checkpoint, ModelWeights& weights)
      : checkpoint_(checkpoint), weights_(weights) {}

  // `name`.weight with `name`.scale where the format has scales.
  WeightView Matrix(const std::string& name) {
    const StoredTensor* tensor = Find(name + ".weight");
    if (tensor == nullptr || tensor->shape.size() != 2) return {};
    WeightView view;
    view.dtype = tensor->dtype;
    view.data = tensor->data.data();
    view.rows = static_cast<int>(tensor->shape[0]);
    view.cols = static_cast<int>(tensor->shape[1] * (tensor->dtype == DType::kI8 ? 2 : 1));
    if (view.quantised()) {
      const StoredTensor* scale = Find(name + ".scale");
      if (scale != nullptr) view.scale = reinterpret_cast<const uint8_t*>(scale->data.data());
    }
    return view;
  }

  TensorView<const float> Floats(const std::string& name) {
    const StoredTensor* tensor = Find(name);
    if (tensor == nullptr) return {};
    if (tensor->dtype == DType::kF32) return Shaped<float>(*tensor);
    if (tensor->dtype != DType::kBF16) {
      Fail(InvalidArgument(name + ": dtype " + std::string(DTypeName(tensor->dtype)) +
                           ", expected F32 or BF16"));
      return {};
    }
    std::vector<float>& values = weights_.widened_.emplace_back(tensor->data.size() / 2);
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, tensor->data.data() + 2 * i, sizeof(bits));
      values[i] = Bf16ToFloat(bits);
    }
    return {values.data(), static_cast<int64_t>(values.size())};
  }

  TensorView<const int64_t> Ids(const std::string& name) {
    const StoredTensor* tensor = Find(name);
    return tensor == nullptr ? TensorView<const int64_t>() : Shaped<int64_t>(*tensor);
  }

  HyperConnectionWeights HyperConnection(const std::string& name) {
    return {Floats(name + "_fn"), Floats(name + "_base"), Floats(name + "_scale")};
  }

  CompressorWeights Compressor(const std::string& name) {
    return {Matrix(name + ".wkv"), Matrix(name + ".wgate"), Floats(name + ".ape"),
            Floats(name + ".norm.weight")};
  }

  ExpertWeights Expert(const std::string& name) {
    return {Matrix(name + ".w1"), Matrix(name + ".w2"), Matrix(name + ".w3")};
  }

  LayerWeights Layer(const std::string& name, int ratio, bool hashed) {
    LayerWeights layer;
    layer.ratio = ratio;
    layer.hc_attn = HyperConnection(name + ".hc_attn");
    layer.hc_ffn = HyperConnection(name + ".hc_ffn");
    layer.attn_norm = Floats(name + ".attn_norm.weight");
    layer.ffn_norm = Floats(name + ".ffn_norm.weight");

    AttentionWeights& attn = layer.attn;
    const std::string a = name + ".attn.";
    attn.wq_a = Matrix(a + "wq_a");
    attn.wq_b = Matrix(a + "wq_b");
    attn.wkv = Matrix(a + "wkv");
    attn.wo_a = Matrix(a + "wo_a");
    attn.wo_b = Matrix(a + "wo_b");
    attn.q_norm = Floats(a + "q_norm.weight");
    attn.kv_norm = Floats(a + "kv_norm.weight");
    attn.sink = Floats(a + "attn_sink");
    if (ratio != 0) attn.compressor = Compressor(a + "compressor");
    if (ratio == 4) {
      attn.indexer = {Matrix(a + "indexer.wq_b"), Matrix(a + "indexer.weights_proj"),
                      Compressor(a + "indexer.compressor")};
    }

    const std::string f = name + ".ffn.";
    layer.ffn.gate = Matrix(f + "gate");
    if (hashed) {
      layer.ffn.hash_table = Ids(f + "gate.tid2eid");
    } else {
      layer.ffn.bias = Floats(f + "gate.bias");
    }
    for (int e = 0; e < checkpoint_.config().num_experts; ++e) {
      layer.ffn.routed.push_back(Expert(f + "experts." + std::to_string(e)));
    }
    layer.ffn.shared = Expert(f + "shared_experts");
    return layer;
  }

  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const StoredTensor* Find(const std::string& name) {
    const StoredTensor* tensor = checkpoint_.Find(name);
    if (tensor == nullptr) Fail(NotFound("checkpoint has no tensor " + name));
    return tensor;
  }
  template <typename T>
  static TensorView<const T> Shaped(const StoredTensor& tensor) {
    const auto* data = reinterpret_cast<const T*>(tensor.data.data());
    if (tensor.shape.size() == 2) return {data, tensor.shape[0], tensor.shape[1]};
    return {data, static_cast<int64_t>(tensor.data.size() / sizeof(T))};
  }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const Checkpoint& checkpoint_;
  ModelWeights& weights_;
  Status status_;
};

Result<std::unique_ptr<ModelWeights>> ModelWeights::Build(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  auto weights = std::make_unique<ModelWeights>();
  WeightReader reader(checkpoint, *weights);
  weights->embed = reader.Matrix("embed");
  weights->head = reader.Matrix("head");
  weights->norm = reader.Floats("norm.weight");
  weights->hc_head = reader.HyperConnection("hc_head");
  for (int l = 0; l < config.num_layers; ++l) {
    weights->layers.push_back(reader.Layer("layers." + std::to_string(l),
                                           config.compress_ratios[static_cast<size_t>(l)],
                                           config.IsHashLayer(l)));
  }
  for (size_t k = 0; k < config.mtp_compress_ratios.size(); ++k) {
    const std::string name = "mtp." + std::to_string(k);
    // A config may announce blocks that this copy of the checkpoint does not carry.
    if (checkpoint.Find(name + ".e_proj.weight") == nullptr) break;
    MtpWeights& mtp = weights->mtp.emplace_back();
    mtp.e_proj = reader.Matrix(name + ".e_proj");
    mtp.h_proj = reader.Matrix(name + ".h_proj");
    mtp.enorm = reader.Floats(name + ".enorm.weight");
    mtp.hnorm = reader.Floats(name + ".hnorm.weight");
    mtp.norm = reader.Floats(name + ".norm.weight");
    mtp.hc_head = reader.HyperConnection(name + ".hc_head");
    // An MTP block's layer id is past the main stack, so it is never hash-routed.
    mtp.layer = reader.Layer(name, config.mtp_compress_ratios[k], /*hashed=*/false);
  }
  FATHOM_RETURN_IF_ERROR(reader.status());
  return weights;
}

}  // namespace fathom
