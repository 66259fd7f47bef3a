#include "tests/fuzz/targets.h"

#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/catalogue.h"
#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "checkpoint/safetensors.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace fathom::fuzz {
namespace {

std::string_view Text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void Safetensors(std::span<const uint8_t> bytes) {
  // The parser asks for data aligned to 8 bytes, as a mapping is. Exactly as long as the input, so
  // that the address sanitizer sees a byte too many.
  std::vector<uint64_t> words((bytes.size() + 7) / 8);
  auto* copy = reinterpret_cast<std::byte*>(words.data());
  for (size_t i = 0; i < bytes.size(); ++i) copy[i] = static_cast<std::byte>(bytes[i]);
  const auto tensors = ParseSafetensors({copy, bytes.size()}, "fuzz.safetensors");
  if (!tensors.ok()) return;
  unsigned sum = 0;
  for (const StoredTensor& tensor : *tensors) {
    for (std::byte b : tensor.data) sum += static_cast<unsigned>(b);
    FATHOM_CHECK(FindTensor(*tensors, tensor.name) == &tensor, "tensors are found by name");
  }
  FATHOM_CHECK(sum <= 255u * bytes.size(), "tensors do not overlap");
}

void Config(std::span<const uint8_t> bytes) {
  const auto config = ParseModelConfig(Text(bytes), "config.json");
  if (!config.ok()) return;
  FATHOM_CHECK(config->compress_ratios.size() == static_cast<size_t>(config->num_layers),
               "one ratio per layer");
  // Bounded, because a config may announce millions of expert tensors.
  if (int64_t{config->num_layers} * config->num_experts < 4096) {
    for (const ExpectedTensor& tensor : ExpectedTensors(*config)) {
      FATHOM_CHECK(tensor.bytes() > 0, "sizes do not overflow");
    }
  }
  for (const PartBytes& part : InventoryOf(*config))
    FATHOM_CHECK(part.main_bytes < UINT64_MAX / 2, "bytes");
}

void TokenizerJson(std::span<const uint8_t> bytes) {
  const auto tokenizer = Tokenizer::FromText(Text(bytes));
  if (!tokenizer.ok()) return;
  constexpr std::string_view kText =
      "Hello 12345, \u4f60\u597d!\n  <\uff5cUser\uff5c>\U0001f600 end";
  const auto ids = tokenizer->Encode(kText, AddedTokens::kMatch);
  FATHOM_CHECK(ids.ok(), "valid text encodes");
  FATHOM_CHECK(tokenizer->Decode(*ids, SpecialTokens::kKeep) == kText,
               "decoding gives the text back");
  Detokenizer detokenizer(*tokenizer);
  std::string pieces;
  for (TokenId id : *ids) pieces += detokenizer.Push(id);
  FATHOM_CHECK(pieces + detokenizer.Finish() == kText, "so does decoding piece by piece");
}

}  // namespace fathom::fuzz
