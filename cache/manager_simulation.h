// ManagerSimulation: histories of a BlockManager, held against a naive model. Used by tests only.
//
// A history is a vector of operations whose arguments are random numbers, read modulo what exists
// when the operation runs; one whose precondition does not hold is skipped. So every part of a
// history is a history, and a failing one can be shrunk.
//
// The memory is simulated: where a backend would store a position's entry it holds a tag, the hash
// of salt and tokens up to that position. Before a step everything that the step reads must bear
// the tag of the sequence that reads it, which no mistake in sharing, copying, evicting or giving
// back survives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/cache_layout.h"

namespace fathom {

enum class OpKind {
  kAdmit,     // a prompt that begins like an earlier sequence
  kStep,      // some sequences: Extend, copies, entries, Commit
  kKeep,      // a resume point
  kFork,      // and go on with other tokens
  kTruncate,  // and go on with the same or other tokens
  kRelease,
  kPreempt,  // Keep and Release: a later kAdmit brings it back
  kClear,
};

struct Op {
  OpKind kind = OpKind::kStep;
  uint32_t a = 0, b = 0, c = 0;
};

std::vector<Op> RandomOps(uint32_t seed, size_t num_ops);
// As it would stand in a test.
std::string ToString(const std::vector<Op>& ops);

// Mistakes of the simulated backend, which show that the checks can fail.
enum class Sabotage { kNone, kNoCopies, kNoStates, kWrongToken };

struct SimulationConfig {
  CacheGeometry geometry;
  CacheDTypes dtypes;
  int64_t num_slabs = 0;
  int max_sequences = 6;
  int64_t max_positions = 2000;
  int max_step_positions = 600;
  // Memory never runs short, so nothing may fail and every hit is as long as it can be.
  bool ample = false;
  size_t check_every = 8;  // operations between complete counts
  Sabotage sabotage = Sabotage::kNone;
};

// What happened, to see that histories are worth something.
struct SimulationCounts {
  int64_t steps = 0, hits = 0, unaligned_hits = 0, copies = 0, evictions = 0, refusals = 0;
};
struct SimulationResult {
  std::optional<std::string> failure;
  SimulationCounts counts;
};

// Runs the history and gives everything back at the end.
SimulationResult Simulate(const SimulationConfig& config, const std::vector<Op>& ops);

}  // namespace fathom
