#include "backend/plugin/plugin_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "backend/plugin/elf_file.h"

namespace fathom {
namespace {

constexpr const char* kSymbol = "fathom_backend_table";
// Version and size: what every version of the table begins with.
constexpr uint64_t kVersionBytes = offsetof(FathomBackendTable, name);
// Of version 1.0.
constexpr uint64_t kLeastBytes = offsetof(FathomBackendTable, head) + sizeof(void*);

std::string VersionText(uint32_t major, uint32_t minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

Status Wrong(const std::string& what) { return InvalidArgument("the plug-in's table: " + what); }

Status CheckName(const FathomBackendTable& table) {
  const size_t length = strnlen(table.name, sizeof(table.name));
  const auto printable = [](char c) { return c > ' ' && c < 0x7F; };
  if (length == 0 || length == sizeof(table.name) ||
      !std::all_of(table.name, table.name + length, printable)) {
    return Wrong("name must be 1 to " + std::to_string(sizeof(table.name) - 1) +
                 " printable ASCII characters without spaces");
  }
  return OkStatus();
}

// Whether all required functions are there, and the first that is not.
Status CheckFunctions(const FathomBackendTable& t) {
  const auto address = [](auto* function) { return reinterpret_cast<const void*>(function); };
  const struct {
    const char* name;
    const void* function;
  } required[] = {
#define FATHOM_REQUIRED(field) {#field, address(t.field)}
      FATHOM_REQUIRED(create),
      FATHOM_REQUIRED(destroy),
      FATHOM_REQUIRED(prepare),
      FATHOM_REQUIRED(num_inexact_entries),
      FATHOM_REQUIRED(allocate),
      FATHOM_REQUIRED(free),
      FATHOM_REQUIRED(copy_in),
      FATHOM_REQUIRED(copy_out),
      FATHOM_REQUIRED(copy_within),
      FATHOM_REQUIRED(memory_state),
      FATHOM_REQUIRED(rope_table),
      FATHOM_REQUIRED(embed_expand),
      FATHOM_REQUIRED(hc_pre_norm),
      FATHOM_REQUIRED(hc_post),
      FATHOM_REQUIRED(rms_norm),
      FATHOM_REQUIRED(linear),
      FATHOM_REQUIRED(q_norm_rope_kv_insert),
      FATHOM_REQUIRED(compress_insert),
      FATHOM_REQUIRED(indexer_topk),
      FATHOM_REQUIRED(sparse_attention),
      FATHOM_REQUIRED(inverse_rope_out),
      FATHOM_REQUIRED(route),
      FATHOM_REQUIRED(moe),
      FATHOM_REQUIRED(head),
#undef FATHOM_REQUIRED
  };
  for (const auto& entry : required) {
    if (entry.function == nullptr) return Wrong(std::string(entry.name) + " is null");
  }
  return OkStatus();
}

Status Named(const std::string& path, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), "--backend-plugin " + path + ": " + status.message()};
}

// The table's address and the bytes that the library says it has.
Result<FathomBackendTable> TableOf(void* library) {
  const void* const symbol = dlsym(library, kSymbol);
  if (symbol == nullptr) {
    return InvalidArgument(std::string("exports no ") + kSymbol +
                           ": not a plug-in of fathom (docs/backend-plugins.md)");
  }
  Dl_info info = {};
  const ElfW(Sym)* entry = nullptr;
  if (dladdr1(symbol, &info, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&entry)),
              RTLD_DL_SYMENT) == 0 ||
      entry == nullptr) {
    return InvalidArgument(std::string(kSymbol) + " cannot be found in the library's symbols");
  }
  if (ELF64_ST_TYPE(entry->st_info) != STT_OBJECT) {
    return InvalidArgument(std::string(kSymbol) + " must be an object, a FathomBackendTable");
  }
  return CheckPluginTable(static_cast<const FathomBackendTable*>(symbol), entry->st_size);
}

Result<FathomBackendTable> Load(const std::string& path) {
  FATHOM_RETURN_IF_ERROR(plugin::CheckSharedLibrary(path));
  // A name without a slash would be searched for in the system's folders.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return InvalidArgument(std::string("cannot be loaded: ") +
                           (reason == nullptr ? "unknown reason" : reason));
  }
  return TableOf(library);
}

}  // namespace

Result<FathomBackendTable> CheckPluginTable(const FathomBackendTable* table, uint64_t table_bytes) {
  if (table_bytes < kVersionBytes) {
    return Wrong(std::to_string(table_bytes) + " bytes, too few for its version");
  }
  FathomBackendTable checked = {};
  std::memcpy(&checked, table, kVersionBytes);
  if (checked.major != FATHOM_PLUGIN_MAJOR || checked.minor > FATHOM_PLUGIN_MINOR) {
    return Unimplemented(
        "the plug-in was built for version " + VersionText(checked.major, checked.minor) +
        " of the interface; this fathom takes " + VersionText(FATHOM_PLUGIN_MAJOR, 0) + " to " +
        VersionText(FATHOM_PLUGIN_MAJOR, FATHOM_PLUGIN_MINOR));
  }
  if (checked.struct_size < kLeastBytes || checked.struct_size > table_bytes) {
    return Wrong("struct_size is " + std::to_string(checked.struct_size) +
                 ", must be at least the " + std::to_string(kLeastBytes) +
                 " bytes of version 1.0 and at most the " + std::to_string(table_bytes) +
                 " that the library has");
  }
  std::memcpy(&checked, table, std::min<uint64_t>(checked.struct_size, sizeof(checked)));
  FATHOM_RETURN_IF_ERROR(CheckName(checked));
  constexpr uint32_t kNumerics = 1u << FATHOM_OFFICIAL | 1u << FATHOM_EXACT;
  if (checked.numerics == 0 || (checked.numerics & ~kNumerics) != 0) {
    return Wrong("numerics must be one or both of the bits of FATHOM_OFFICIAL and FATHOM_EXACT");
  }
  if ((checked.encodings & 1u << FATHOM_ENTRY_F32) == 0) {
    return Wrong("encodings must have the bit of FATHOM_ENTRY_F32, which states are stored in");
  }
  if (checked.minor == 0) checked.features = 0;
  if ((checked.features & ~(1u << FATHOM_FEATURE_E4M3_HEADS)) != 0) {
    return Wrong("features must be none but the bit of FATHOM_FEATURE_E4M3_HEADS");
  }
  if (checked.host_readable != 0 && checked.host_readable != 1) {
    return Wrong("host_readable must be 0 or 1");
  }
  FATHOM_RETURN_IF_ERROR(CheckFunctions(checked));
  return checked;
}

Result<FathomBackendTable> LoadPluginTable(const std::string& path) {
  Result<FathomBackendTable> table = Load(path);
  if (!table.ok()) return Named(path, table.status());
  return table;
}

}  // namespace fathom
