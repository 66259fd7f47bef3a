// What `fathom inspect` found, and its two forms of print.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/inventory.h"
#include "checkpoint/verify.h"

namespace fathom::cli {

struct Inspection {
  std::string name;
  std::string config_path;
  ModelConfig config;  // without MTP blocks that the files lack
  // Of a directory; from a config alone there are none.
  bool has_weights = false;  // opened and compared with the config
  std::vector<CheckpointFile> files;
  std::vector<std::string> notes;
  std::optional<bool> has_tokenizer, has_generation_config;
  std::optional<VerifyReport> verified;
};

void PrintText(const Inspection& inspection, std::ostream& out);
void PrintJson(const Inspection& inspection, std::ostream& out);

// "159,609,485,896"
std::string Grouped(uint64_t number);

}  // namespace fathom::cli
