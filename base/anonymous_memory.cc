#include "base/anonymous_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

namespace fathom {

Result<AnonymousMemory> AnonymousMemory::Create(size_t bytes, bool huge_pages) {
  const size_t page =
      huge_pages ? kHugePageBytes : static_cast<size_t>(std::max(1L, ::sysconf(_SC_PAGESIZE)));
  // Room to find an aligned start in.
  const size_t slack = huge_pages ? kHugePageBytes : 0;
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() / 2) {
    return OutOfMemory("memory of " + std::to_string(bytes) + " bytes cannot be had");
  }
  const size_t size = (bytes + page - 1) / page * page;
  // Reserved without being counted as used: who asks has compared it with the memory that is free.
  void* mapped = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return OutOfMemory("memory of " + std::to_string(size) +
                       " bytes: " + std::generic_category().message(errno));
  }
  auto* start = static_cast<std::byte*>(mapped);
  if (huge_pages) {
    const size_t before = (page - reinterpret_cast<uintptr_t>(start) % page) % page;
    if (before > 0) ::munmap(start, before);
    start += before;
    ::munmap(start + size, slack - before);
    ::madvise(start, size, MADV_HUGEPAGE);
  }
  return AnonymousMemory({start, size});
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

AnonymousMemory::~AnonymousMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void AnonymousMemory::MakeReadOnly() {
  if (!bytes_.empty()) ::mprotect(bytes_.data(), bytes_.size(), PROT_READ);
}

int64_t AnonymousMemory::HugePageBytes() const {
  const auto begin = reinterpret_cast<uintptr_t>(bytes_.data());
  const uintptr_t end = begin + bytes_.size();
  std::ifstream smaps("/proc/self/smaps");
  int64_t total = 0;
  uintptr_t overlap = 0;  // of the mapping that the lines are about
  for (std::string line; std::getline(smaps, line);) {
    const char* const last = line.data() + line.size();
    uintptr_t from = 0;
    uintptr_t to = 0;
    const auto first = std::from_chars(line.data(), last, from, 16);
    if (first.ec == std::errc() && first.ptr != last && *first.ptr == '-') {
      const auto second = std::from_chars(first.ptr + 1, last, to, 16);
      if (second.ec == std::errc() && second.ptr != last && *second.ptr == ' ') {
        from = std::max(from, begin);
        to = std::min(to, end);
        overlap = to > from ? to - from : 0;
        continue;
      }
    }
    constexpr std::string_view kName = "AnonHugePages:";
    if (overlap == 0 || !line.starts_with(kName)) continue;
    const size_t digits = line.find_first_not_of(' ', kName.size());
    int64_t kilobytes = 0;
    if (digits != std::string::npos) std::from_chars(line.data() + digits, last, kilobytes);
    total += std::min(kilobytes * 1024, static_cast<int64_t>(overlap));
  }
  return total;
}

std::string HugePagePolicy(const std::filesystem::path& sys) {
  std::ifstream file(sys / "kernel" / "mm" / "transparent_hugepage" / "enabled");
  std::string line;
  if (!std::getline(file, line)) return {};
  // "always [madvise] never": the brackets are around the one that holds.
  const size_t open = line.find('[');
  const size_t close = line.find(']');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  return line.substr(open + 1, close - open - 1);
}

bool TakePagesFrom(int node) {
  // Values of the kernel's interface; its header belongs to a package that is not needed otherwise.
  constexpr int kDefault = 0;
  constexpr int kPreferred = 1;
  if (node < 0) return ::syscall(SYS_set_mempolicy, kDefault, nullptr, 0) == 0;
  constexpr int kBits = std::numeric_limits<unsigned long>::digits;
  std::array<unsigned long, 1024 / kBits> mask{};
  if (node >= 1024) return false;
  mask[static_cast<size_t>(node / kBits)] = 1UL << (node % kBits);
  // The kernel takes one bit less than it is told.
  return ::syscall(SYS_set_mempolicy, kPreferred, mask.data(), 1024 + 1) == 0;
}

}  // namespace fathom
