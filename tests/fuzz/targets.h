// What the fuzzers run: one function per kind of file or text that comes from outside.
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
// A model's output: two bytes of options (targets_chat.cc), then text. Read in random pieces it
// gives the same as whole; whole calls have JSON arguments, others don't; no mark gets into the
// content.
void ModelOutput(std::span<const uint8_t> bytes);
// The body of a chat request; what is admitted becomes a prompt.
void ChatRequest(std::span<const uint8_t> bytes);
// The body of any generating route (the first byte says which): refused with an error of its
// client's making, or read.
void ApiRequest(std::span<const uint8_t> bytes);
// A regex, a grammar, a schema or a tool's schema (the first byte says which): refused, or the
// shortest text that it allows is allowed token by token.
void ConstraintText(std::span<const uint8_t> bytes);

}  // namespace fathom::fuzz
