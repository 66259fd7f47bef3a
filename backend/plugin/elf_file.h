// Whether a file can be a shared library of this process, before the loader gets it.
//
// The loader maps what a file's headers promise; of a file that was cut short or damaged it touches
// pages that are not there. Its own messages stay for all else.
#pragma once

#include <string>

#include "base/status.h"

namespace fathom::plugin {

// kNotFound, kInvalidArgument or kDataLoss when `path` is no regular file, no shared library, one
// for another kind of machine, or shorter than its headers say. Messages begin with the reason, not
// the path.
Status CheckSharedLibrary(const std::string& path);

}  // namespace fathom::plugin
