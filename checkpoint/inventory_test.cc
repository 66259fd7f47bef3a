#include "checkpoint/inventory.h"

#include <gtest/gtest.h>

#include <map>

#include "checkpoint/catalogue.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

ModelConfig Config(const std::filesystem::path& path) {
  auto config = ParseModelConfig(ReadText(path), path.string());
  EXPECT_TRUE(config.ok()) << config.status().ToString();
  return config.ok() ? *config : ModelConfig{};
}
ModelConfig Preset(const std::string& name) {
  return Config(SourceDir() / "models/presets" / name);
}

PartBytes Of(const std::vector<PartBytes>& parts, Part part) {
  EXPECT_EQ(parts[static_cast<size_t>(part)].part, part);
  return parts[static_cast<size_t>(part)];
}

// model.md 4.5 and 1.1: computed there from the tensor list, equal to the published index totals.
TEST(Inventory, FlashEqualsThePublishedTables) {
  const std::vector<PartBytes> flash = InventoryOf(Preset("flash.json"));
  ASSERT_EQ(flash.size(), static_cast<size_t>(kNumParts));
  const std::map<Part, std::pair<uint64_t, uint64_t>> bytes = {
      {Part::kRoutedExperts, {147'169'738'752, 3'422'552'064}},
      {Part::kAttention, {5'400'554'112, 106'964'608}},
      {Part::kSharedExperts, {1'082'196'480, 25'167'360}},
      {Part::kEmbedding, {1'059'061'760, 0}},
      {Part::kHead, {1'059'061'760, 0}},
      {Part::kOther, {245'085'276, 39'103'724}}};
  for (const auto& [part, expected] : bytes) {
    EXPECT_EQ(Of(flash, part).main_bytes, expected.first) << PartName(part);
    EXPECT_EQ(Of(flash, part).mtp_bytes, expected.second) << PartName(part);
  }
  EXPECT_EQ(Of(flash, Part::kRoutedExperts).bytes_per_token, 3'449'290'752u);
  EXPECT_EQ(Of(flash, Part::kHead).bytes_per_token, 1'059'061'760u);
  EXPECT_EQ(Of(flash, Part::kOther).bytes_per_token + Of(flash, Part::kEmbedding).bytes_per_token,
            226'477'292u);
  const PartBytes total = Total(flash);
  EXPECT_EQ(total.main_bytes, 156'015'698'140u);
  EXPECT_EQ(total.mtp_bytes, 3'593'787'756u);
  EXPECT_EQ(total.bytes_per_token, 11'217'580'396u);
  EXPECT_EQ(total.main_parameters, 284'332'240'471u);
  EXPECT_EQ(total.main_parameters + total.mtp_parameters, 290'942'289'362u);
  EXPECT_EQ(total.active_parameters, 13'799'632'471u);  // published as 13.80 B
}

TEST(Inventory, ProEqualsThePublishedTables) {
  const std::vector<PartBytes> pro = InventoryOf(Preset("pro.json"));
  const std::map<Part, std::pair<uint64_t, uint64_t>> bytes = {
      {Part::kRoutedExperts, {822'054'223'872, 13'476'298'752}},
      {Part::kAttention, {20'264'787'840, 299'915'648}},
      {Part::kSharedExperts, {4'029'923'520, 66'064'320}},
      {Part::kEmbedding, {1'853'358'080, 0}},
      {Part::kHead, {1'853'358'080, 0}},
      {Part::kOther, {692'553'612, 114'308'972}}};
  for (const auto& [part, expected] : bytes) {
    EXPECT_EQ(Of(pro, part).main_bytes, expected.first) << PartName(part);
    EXPECT_EQ(Of(pro, part).mtp_bytes, expected.second) << PartName(part);
  }
  EXPECT_EQ(Of(pro, Part::kRoutedExperts).bytes_per_token, 12'844'597'248u);
  EXPECT_EQ(Of(pro, Part::kOther).bytes_per_token + Of(pro, Part::kEmbedding).bytes_per_token,
            673'951'772u);
  const PartBytes total = Total(pro);
  EXPECT_EQ(total.bytes_per_token, 39'666'618'460u);
  EXPECT_EQ(total.main_parameters, 1'572'997'201'763u);
  EXPECT_EQ(total.main_parameters + total.mtp_parameters, 1'598'837'347'742u);
  EXPECT_EQ(total.active_parameters, 49'779'081'059u);  // published as 49.78 B
}

TEST(Inventory, LayersEqualThePublishedOnes) {
  const ModelConfig flash = Preset("flash.json");
  EXPECT_EQ(LayerBytes(flash, 0), 3'566'148'952u);   // ratio 0, hash
  EXPECT_EQ(LayerBytes(flash, 2), 3'596'055'640u);   // ratio 4, hash
  EXPECT_EQ(LayerBytes(flash, 3), 3'568'596'312u);   // ratio 128
  EXPECT_EQ(LayerBytes(flash, 42), 3'589'851'224u);  // ratio 4, scored
  const ModelConfig pro = Preset("pro.json");
  EXPECT_EQ(LayerBytes(pro, 0), 13'874'466'328u);
  EXPECT_EQ(LayerBytes(pro, 2), 13'909'746'200u);
  EXPECT_EQ(LayerBytes(pro, 3), 13'868'262'424u);
  EXPECT_EQ(LayerBytes(pro, 60), 13'903'542'296u);
}

TEST(Inventory, DTypesEqualTheCatalogue) {
  for (const char* name : {"flash.json", "pro.json"}) {
    std::map<DType, std::pair<uint64_t, uint64_t>> expected;
    for (const ExpectedTensor& tensor : ExpectedTensors(Preset(name))) {
      ++expected[tensor.dtype].first;
      expected[tensor.dtype].second += tensor.bytes();
    }
    std::map<DType, std::pair<uint64_t, uint64_t>> counted;
    for (const DTypeTotal& total : DTypesOf(Preset(name))) {
      counted[total.dtype] = {total.num_tensors, total.bytes};
    }
    EXPECT_EQ(counted, expected);
  }
}

TEST(CompactLayers, WritesRunsOfAllAndOfEveryOtherLayer) {
  EXPECT_EQ(CompactLayers({}), "");
  EXPECT_EQ(CompactLayers({7}), "7");
  EXPECT_EQ(CompactLayers({0, 1}), "0-1");
  EXPECT_EQ(CompactLayers({0, 1, 3, 5, 7}), "0-1, odd 3-7");
  EXPECT_EQ(CompactLayers({2, 4, 6, 8}), "even 2-8");
  EXPECT_EQ(CompactLayers({2, 4}), "2, 4");
  EXPECT_EQ(CompactLayers({1, 4, 5, 6, 9}), "1, 4-6, 9");
  // Step 1 wins over step 2 where both begin.
  EXPECT_EQ(CompactLayers({2, 4, 6, 7, 8}), "even 2-6, 7-8");
}

// Another geometry, counted tensor by tensor.
TEST(Inventory, IsTheSumOfTheCatalogue) {
  const ModelConfig tiny = Config(TinyA() / "config.json");
  std::vector<PartBytes> sums(kNumParts);
  for (const ExpectedTensor& tensor : ExpectedTensors(tiny)) {
    PartBytes& sum = sums[static_cast<size_t>(PartOf(tensor.name))];
    (tensor.name.starts_with("mtp.") ? sum.mtp_bytes : sum.main_bytes) += tensor.bytes();
  }
  const std::vector<PartBytes> inventory = InventoryOf(tiny);
  for (const Part part : kParts) {
    EXPECT_EQ(Of(inventory, part).main_bytes, sums[static_cast<size_t>(part)].main_bytes);
    EXPECT_EQ(Of(inventory, part).mtp_bytes, sums[static_cast<size_t>(part)].mtp_bytes);
  }
  EXPECT_EQ(Total(inventory).main_bytes + Total(inventory).mtp_bytes, 9'301'970u);
}

// The largest geometry that a config.json may announce must cost neither memory nor time.
TEST(Inventory, LargestConfigIsCounted) {
  ModelConfig config = Preset("flash.json");
  config.num_layers = 1024;
  config.num_experts = 4096;
  config.compress_ratios.assign(1024, 4);
  EXPECT_EQ(Of(InventoryOf(config), Part::kRoutedExperts).main_bytes,
            uint64_t{1024} * 4096 * 13'369'344);
}

}  // namespace
}  // namespace fathom
