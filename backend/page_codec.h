// Scalar store and load of one cache entry: the meaning of each EntryEncoding.
//
// A store rounds to the format (e4m3 groups of 64 over the channels without rotation, bf16 for the
// rotated ones; e2m1 groups of 32); the values that a load returns are the ones that the official
// code computes with. Every backend agrees with these two functions bit for bit.
#pragma once

#include <span>

#include "backend/page_format.h"

namespace fathom {

// `values` has format.dim elements.
void StoreEntry(const PageFormat& format, EntryRef entry, std::span<const float> values);
void LoadEntry(const PageFormat& format, EntryRef entry, std::span<float> values);

}  // namespace fathom
