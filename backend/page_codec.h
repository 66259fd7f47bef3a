// Scalar store and load of one cache entry: the meaning of each EntryEncoding.
//
// A store rounds to the official grid (KV: e4m3 groups of 64 over the channels without rotation,
// bf16 for the rotated ones; index keys: e2m1 groups of 32), whichever encoding then keeps the
// values; a load returns the ones that the official code computes with. Every backend agrees with
// these two functions bit for bit.
#pragma once

#include <span>

#include "backend/page_format.h"

namespace fathom {

// `values` has format.dim elements. False when the encoding could not keep the rounded values as
// they are, and the entry holds the nearest ones: kE4m3Scaled where the scales of an entry's groups
// are more than 2^14 apart. All other stores are exact.
bool StoreEntry(const PageFormat& format, EntryRef entry, std::span<const float> values);
void LoadEntry(const PageFormat& format, EntryRef entry, std::span<float> values);

// `values` become what LoadEntry returns after they were stored, without a page. For formats that
// hold KV (PageFormat::HoldsKv).
void RoundKvEntry(const PageFormat& format, std::span<float> values);

}  // namespace fathom
