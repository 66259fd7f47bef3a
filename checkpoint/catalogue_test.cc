#include "checkpoint/catalogue.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "checkpoint/test_data.h"

namespace fathom {
namespace {

struct Totals {
  uint64_t tensors = 0;
  uint64_t bytes = 0;
  bool operator==(const Totals&) const = default;
};

ModelConfig Preset(const std::string& name) {
  const auto path = SourceDir() / "models/presets" / name;
  auto config = ParseModelConfig(ReadText(path), name);
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? *config : ModelConfig{};
}

std::map<DType, Totals> ByDType(const std::vector<ExpectedTensor>& tensors) {
  std::map<DType, Totals> totals;
  for (const ExpectedTensor& tensor : tensors) {
    ++totals[tensor.dtype].tensors;
    totals[tensor.dtype].bytes += tensor.bytes();
  }
  return totals;
}

Totals Sum(const std::vector<ExpectedTensor>& tensors) {
  Totals sum;
  for (const ExpectedTensor& tensor : tensors) {
    ++sum.tensors;
    sum.bytes += tensor.bytes();
  }
  return sum;
}

// The index totals and dtype inventories of the official checkpoints.
TEST(Catalogue, FlashEqualsThePublishedInventory) {
  const ModelConfig flash = Preset("flash.json");
  EXPECT_EQ(Sum(ExpectedTensors(flash)), (Totals{69'187, 159'609'485'896}));
  EXPECT_EQ(Sum(ExpectedMtpTensors(flash, 0)), (Totals{1'575, 3'593'787'756}));
  const std::map<DType, Totals> published = {
      {DType::kI8, {33'792, 141'733'920'768}}, {DType::kF8E8M0, {34'167, 8'858'737'664}},
      {DType::kF8E4M3, {375, 6'023'020'544}},  {DType::kBF16, {433, 2'830'518'528}},
      {DType::kF32, {417, 144'672'072}},       {DType::kI64, {3, 18'616'320}}};
  EXPECT_EQ(ByDType(ExpectedTensors(flash)), published);
}

TEST(Catalogue, ProEqualsThePublishedInventory) {
  const ModelConfig pro = Preset("pro.json");
  EXPECT_EQ(Sum(ExpectedTensors(pro)), (Totals{145'116, 864'704'792'696}));
  EXPECT_EQ(Sum(ExpectedMtpTensors(pro, 0)), (Totals{2'343, 13'956'587'692}));
  const std::map<DType, Totals> published = {
      {DType::kI8, {71'424, 786'381'668'352}}, {DType::kF8E8M0, {71'952, 49'150'268'416}},
      {DType::kF8E4M3, {528, 23'169'335'296}}, {DType::kBF16, {619, 5'633'798'656}},
      {DType::kF32, {590, 351'105'656}},       {DType::kI64, {3, 18'616'320}}};
  EXPECT_EQ(ByDType(ExpectedTensors(pro)), published);
}

TEST(Catalogue, MainTensorsAreTheCatalogueWithoutMtpBlocks) {
  const ModelConfig flash = Preset("flash.json");
  EXPECT_EQ(Sum(ExpectedMainTensors(flash)), (Totals{69'187 - 1'575, 156'015'698'140}));
}

TEST(Catalogue, ShapesOfOneLayerOfEachKind) {
  const ModelConfig flash = Preset("flash.json");
  std::map<std::string, std::pair<DType, std::vector<int64_t>>> shapes;
  for (const ExpectedTensor& tensor : ExpectedTensors(flash)) {
    shapes[tensor.name] = {tensor.dtype, tensor.shape};
  }
  using Entry = std::pair<DType, std::vector<int64_t>>;
  EXPECT_EQ(shapes["layers.2.attn.wq_b.scale"], Entry(DType::kF8E8M0, {256, 8}));
  EXPECT_EQ(shapes["layers.2.attn.compressor.ape"], Entry(DType::kF32, {4, 1024}));
  EXPECT_EQ(shapes["layers.3.attn.compressor.ape"], Entry(DType::kF32, {128, 512}));
  EXPECT_EQ(shapes["layers.2.attn.indexer.compressor.ape"], Entry(DType::kF32, {4, 256}));
  EXPECT_EQ(shapes["layers.2.ffn.gate.tid2eid"], Entry(DType::kI64, {129280, 6}));
  EXPECT_EQ(shapes["layers.3.ffn.gate.bias"], Entry(DType::kF32, {256}));
  EXPECT_EQ(shapes["layers.0.ffn.experts.255.w2.weight"], Entry(DType::kI8, {4096, 1024}));
  EXPECT_EQ(shapes["mtp.0.e_proj.weight"], Entry(DType::kF8E4M3, {4096, 4096}));
  EXPECT_EQ(shapes["hc_head_fn"], Entry(DType::kF32, {4, 16384}));
  EXPECT_FALSE(shapes.contains("layers.0.attn.compressor.ape"));
  EXPECT_FALSE(shapes.contains("layers.3.attn.indexer.wq_b.weight"));
  EXPECT_FALSE(shapes.contains("layers.0.ffn.gate.bias"));
  EXPECT_FALSE(shapes.contains("mtp.0.ffn.gate.tid2eid"));
}

}  // namespace
}  // namespace fathom
