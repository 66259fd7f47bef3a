// The shared library of a plug-in, and the table that it exports.
#pragma once

#include <cstdint>
#include <string>

#include "backend/plugin/backend_plugin.h"
#include "base/status.h"

namespace fathom {

// The operations' table of the library at `path`, a file; never searched for in other places. The
// library stays loaded until the process ends: what vendors' libraries leave behind for threads and
// for the end of the process must still be there then. Errors begin with "--backend-plugin <path>":
// kNotFound and kInvalidArgument for files that are no such library, kDataLoss for damaged ones,
// and as CheckPluginTable.
Result<FathomBackendTable> LoadPluginTable(const std::string& path);

// A copy of a table that every required function of this host's version is in; what an older
// version lacks is null. `table_bytes` can be read from `table`. kUnimplemented for a version that
// this host does not take, kInvalidArgument, naming the field, for what is missing or wrong.
Result<FathomBackendTable> CheckPluginTable(const FathomBackendTable* table, uint64_t table_bytes);

}  // namespace fathom
