// What holds of a BlockManager between any two calls. Used by tests only.
#pragma once

#include <span>
#include <string>

#include "cache/block_manager.h"

namespace fathom {

// Counts every block in the tables of `sequences`, which are all there are, and compares with the
// pool's accounts: references, blocks in use, cached and free per class, slabs; blocks in use lie
// inside one slab and do not overlap. The first contradiction in words; empty: none.
std::string ContradictionIn(const BlockManager& manager, std::span<const SequenceId> sequences);

}  // namespace fathom
