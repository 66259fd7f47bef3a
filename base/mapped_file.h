// MappedFile: a whole file, mapped read-only.
//
// Weights are used where they lie in the page cache, so a model opens at once and needs its size
// only once per machine. The kernel reads pages when they are first touched. A file that another
// process shortens while it is mapped shows zeros and damaged() from then on where the fault guard
// is installed (base/fault_guard.h), and ends this process elsewhere. Immutable after Open(); any
// thread may read. Moving keeps the address of the bytes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/fault_guard.h"
#include "base/status.h"

namespace fathom {

class MappedFile {
 public:
  // A regular file (or a link to one). Empty files give empty bytes(). Errors name the path.
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // Whether reading bytes() met a page that the file no longer has. What was computed with them
  // before the question is then worthless.
  [[nodiscard]] bool damaged() const { return guard_.damaged(); }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes), guard_(bytes) {}
  std::span<const std::byte> bytes_;  // page-aligned start; empty when nothing is mapped
  GuardedRange guard_;
};

enum class MemoryAdvice {
  kSequential,  // will be read once, front to back
  kRandom,      // no read-ahead
  kWillNeed,    // start reading now
  kDontNeed,    // clean pages may be dropped; they come back from the file
};
// Hints how `bytes`, a part of a mapping, will be used. A hint that the kernel refuses changes
// speed only, so there is nothing to report.
void Advise(std::span<const std::byte> bytes, MemoryAdvice advice);

// Reads `bytes`, a part of a mapping, from the file and enters them into this process's page
// tables, so that no later access waits. Returns when that is done. A hint as well: what cannot be
// read is left to the first access.
void Populate(std::span<const std::byte> bytes);

// Whether all pages of `bytes`, a part of a mapping, are in memory. Where the system does not say
// (of files that are another user's it says that they are), true.
bool InMemory(std::span<const std::byte> bytes);

}  // namespace fathom
