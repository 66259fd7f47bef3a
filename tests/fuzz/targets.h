// What the fuzzers run: one function per kind of file that comes from outside.
//
// Each takes any bytes and must return; a crash, a sanitizer report or a hang is a finding. The
// same functions run over the stored corpora as an ordinary test (corpus_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fathom::fuzz {

// A safetensors file: header and data. Reads every byte of every tensor that it admits.
void Safetensors(std::span<const uint8_t> bytes);
// A config.json; what it admits goes through the catalogue and the inventory.
void Config(std::span<const uint8_t> bytes);
// A tokenizer.json; what it admits encodes and decodes a text.
void TokenizerJson(std::span<const uint8_t> bytes);

}  // namespace fathom::fuzz
