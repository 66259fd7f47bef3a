#include "checkpoint/catalogue.h"

#include <algorithm>
#include <utility>

namespace fathom {
namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t kWeightBlock = 128;  // fp8: one scale per 128 x 128 weights
constexpr int64_t kExpertGroup = 32;   // fp4: one scale per 32 weights of a row

class Builder {
 public:
  explicit Builder(int max_experts) : max_experts_(max_experts) {}
  [[nodiscard]] int max_experts() const { return max_experts_; }
  void Add(const std::string& name, DType dtype, Shape shape) {
    tensors_.push_back({name, dtype, std::move(shape)});
  }
  void Bf16(const std::string& name, Shape shape) { Add(name, DType::kBF16, std::move(shape)); }
  void F32(const std::string& name, Shape shape) { Add(name, DType::kF32, std::move(shape)); }
  // y = W x, W [out, in].
  void Fp8(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", DType::kF8E4M3, {out, in});
    const auto blocks = [](int64_t n) { return (n + kWeightBlock - 1) / kWeightBlock; };
    Add(name + ".scale", DType::kF8E8M0, {blocks(out), blocks(in)});
  }
  // Two values per byte along `in`.
  void Fp4(const std::string& name, int64_t out, int64_t in) {
    Add(name + ".weight", DType::kI8, {out, in / 2});
    Add(name + ".scale", DType::kF8E8M0, {out, in / kExpertGroup});
  }
  std::vector<ExpectedTensor> Take() { return std::move(tensors_); }

 private:
  int max_experts_;
  std::vector<ExpectedTensor> tensors_;
};

void AddCompressor(Builder& out, const std::string& prefix, const ModelConfig& c, int ratio,
                   int64_t width) {
  // Ratio 4 overlaps: half of the channels serve the next window, half the own.
  const int64_t channels = ratio == 4 ? 2 * width : width;
  out.F32(prefix + "ape", {ratio, channels});
  out.Bf16(prefix + "wkv.weight", {channels, c.hidden_size});
  out.Bf16(prefix + "wgate.weight", {channels, c.hidden_size});
  out.Bf16(prefix + "norm.weight", {width});
}

void AddAttention(Builder& out, const std::string& prefix, const ModelConfig& c, int ratio) {
  const int64_t hidden = c.hidden_size;
  const int64_t heads = c.num_heads;
  const int64_t o_rows = int64_t{c.o_groups} * c.o_lora_rank;
  out.Fp8(prefix + "wq_a", c.q_lora_rank, hidden);
  out.Bf16(prefix + "q_norm.weight", {c.q_lora_rank});
  out.Fp8(prefix + "wq_b", heads * c.head_dim, c.q_lora_rank);
  out.Fp8(prefix + "wkv", c.head_dim, hidden);
  out.Bf16(prefix + "kv_norm.weight", {c.head_dim});
  // Rows of all groups stacked; a row spans the heads of its own group only.
  out.Fp8(prefix + "wo_a", o_rows, heads / c.o_groups * c.head_dim);
  out.Fp8(prefix + "wo_b", hidden, o_rows);
  out.F32(prefix + "attn_sink", {heads});
  if (ratio == 0) return;
  AddCompressor(out, prefix + "compressor.", c, ratio, c.head_dim);
  if (ratio != 4) return;
  out.Fp8(prefix + "indexer.wq_b", int64_t{c.index_num_heads} * c.index_head_dim, c.q_lora_rank);
  out.Bf16(prefix + "indexer.weights_proj.weight", {c.index_num_heads, hidden});
  AddCompressor(out, prefix + "indexer.compressor.", c, ratio, c.index_head_dim);
}

void AddFeedForward(Builder& out, const std::string& prefix, const ModelConfig& c, bool hash) {
  const int64_t hidden = c.hidden_size;
  const int64_t width = c.moe_intermediate_size;
  out.Bf16(prefix + "gate.weight", {c.num_experts, hidden});
  if (hash) {
    out.Add(prefix + "gate.tid2eid", DType::kI64, {c.vocab_size, c.num_experts_per_token});
  } else {
    out.F32(prefix + "gate.bias", {c.num_experts});
  }
  const int64_t shared_width = width * c.num_shared_experts;
  out.Fp8(prefix + "shared_experts.w1", shared_width, hidden);
  out.Fp8(prefix + "shared_experts.w2", hidden, shared_width);
  out.Fp8(prefix + "shared_experts.w3", shared_width, hidden);
  for (int expert = 0; expert < std::min(c.num_experts, out.max_experts()); ++expert) {
    const std::string name = prefix + "experts." + std::to_string(expert);
    out.Fp4(name + ".w1", width, hidden);
    out.Fp4(name + ".w2", hidden, width);
    out.Fp4(name + ".w3", width, hidden);
  }
}

void AddHyperConnection(Builder& out, const std::string& prefix, const ModelConfig& c) {
  // pre and post weights of each copy, then the matrix that mixes the copies.
  const int64_t outputs = int64_t{2 + c.hc_mult} * c.hc_mult;
  out.F32(prefix + "_fn", {outputs, int64_t{c.hc_mult} * c.hidden_size});
  out.F32(prefix + "_base", {outputs});
  out.F32(prefix + "_scale", {3});
}

void AddHead(Builder& out, const std::string& prefix, const ModelConfig& c) {
  out.Bf16(prefix + "norm.weight", {c.hidden_size});
  out.F32(prefix + "hc_head_fn", {c.hc_mult, int64_t{c.hc_mult} * c.hidden_size});
  out.F32(prefix + "hc_head_base", {c.hc_mult});
  out.F32(prefix + "hc_head_scale", {1});
}

void AddBlock(Builder& out, const std::string& prefix, const ModelConfig& c, int ratio, bool hash) {
  AddAttention(out, prefix + "attn.", c, ratio);
  out.Bf16(prefix + "attn_norm.weight", {c.hidden_size});
  out.Bf16(prefix + "ffn_norm.weight", {c.hidden_size});
  AddHyperConnection(out, prefix + "hc_attn", c);
  AddHyperConnection(out, prefix + "hc_ffn", c);
  AddFeedForward(out, prefix + "ffn.", c, hash);
}

void AddMtpBlock(Builder& out, const ModelConfig& c, int block) {
  const std::string prefix = "mtp." + std::to_string(block) + ".";
  AddBlock(out, prefix, c, c.mtp_compress_ratios[static_cast<size_t>(block)], /*hash=*/false);
  out.Fp8(prefix + "e_proj", c.hidden_size, c.hidden_size);
  out.Fp8(prefix + "h_proj", c.hidden_size, c.hidden_size);
  out.Bf16(prefix + "enorm.weight", {c.hidden_size});
  out.Bf16(prefix + "hnorm.weight", {c.hidden_size});
  AddHead(out, prefix, c);
}

void AddLayer(Builder& out, const ModelConfig& c, int layer) {
  AddBlock(out, "layers." + std::to_string(layer) + ".", c,
           c.compress_ratios[static_cast<size_t>(layer)], c.IsHashLayer(layer));
}

void AddMain(Builder& out, const ModelConfig& c) {
  out.Bf16("embed.weight", {c.vocab_size, c.hidden_size});
  out.Bf16("head.weight", {c.vocab_size, c.hidden_size});
  AddHead(out, "", c);
  for (int layer = 0; layer < c.num_layers; ++layer) AddLayer(out, c, layer);
}

}  // namespace

uint64_t ExpectedTensor::bytes() const {
  auto bytes = static_cast<uint64_t>(DTypeBytes(dtype));
  for (const int64_t dim : shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

std::vector<ExpectedTensor> ExpectedMainTensors(const ModelConfig& config, int max_experts) {
  Builder out(max_experts);
  AddMain(out, config);
  return out.Take();
}

std::vector<ExpectedTensor> ExpectedLayerTensors(const ModelConfig& config, int layer,
                                                 int max_experts) {
  Builder out(max_experts);
  AddLayer(out, config, layer);
  return out.Take();
}

std::vector<ExpectedTensor> ExpectedMtpTensors(const ModelConfig& config, int block,
                                               int max_experts) {
  Builder out(max_experts);
  AddMtpBlock(out, config, block);
  return out.Take();
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config) {
  Builder out(kAllExperts);
  AddMain(out, config);
  for (int block = 0; block < static_cast<int>(config.mtp_compress_ratios.size()); ++block) {
    AddMtpBlock(out, config, block);
  }
  return out.Take();
}

}  // namespace fathom
