// A table of functions that record what they get, for the tests of PluginBackend.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "backend/plugin/backend_plugin.h"

// What stands behind the table's opaque pointer here.
struct FathomBackend {
  std::map<void*, int64_t> lent;  // memory that is not given back
};

namespace fathom::test {

// What the functions saw and what they are to do. One for all tables of the program; a test begins
// with Reset.
struct Script {
  std::vector<std::string> calls;  // names, in order
  // The next call of `fails` gets this.
  std::string fails;
  FathomStatus status = FATHOM_OK;
  std::string message;
  bool throws = false;
  // What they do otherwise.
  bool creates_nothing = false;
  bool allocates_nothing = false;
  int64_t misaligned_by = 0;
  int64_t total_bytes = 1 << 20, free_bytes = 1 << 19;
  int64_t inexact_entries = 0;
  int32_t routed_expert = 0;  // what route writes everywhere
  int32_t kept_entries = 0;   // what indexer_topk writes everywhere
  // What they got last.
  FathomCreateArgs create = {};
  FathomLimits limits = {};
  FathomWeight weight = {};
  FathomLinearArgs linear = {};
  FathomMoeArgs moe = {};
  std::vector<FathomExpert> routed;
  std::vector<const FathomStepPlan*> plans;  // of begin_step and of operations, in order
  FathomStepPlan plan = {};
  FathomPages pages = {};
};
Script& TheScript();
void Reset();

// All functions, in the host's memory, both numerics and all encodings.
FathomBackendTable RecordingTable();

// A field that may not be null.
struct RequiredFunction {
  const char* name;
  size_t offset;
};
std::vector<RequiredFunction> RequiredFunctions();

}  // namespace fathom::test
