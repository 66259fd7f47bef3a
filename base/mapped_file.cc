#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>
#include <utility>

namespace fathom {
namespace {

Status ErrnoStatus(const std::filesystem::path& path, const char* what, int error) {
  std::string message = path.string() + ": " + what + ": " + std::generic_category().message(error);
  return error == ENOENT || error == ENOTDIR ? NotFound(std::move(message))
                                             : Unavailable(std::move(message));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

void Unmap(std::span<const std::byte> bytes) {
  if (!bytes.empty()) ::munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return ErrnoStatus(path, "cannot open", errno);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(path, "cannot stat", errno);
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path.string() + ": not a regular file");
  if (info.st_size == 0) return MappedFile({});
  const auto size = static_cast<size_t>(info.st_size);
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) return ErrnoStatus(path, "cannot map", errno);
  return MappedFile({static_cast<const std::byte*>(address), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, {})), guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    guard_ = {};  // the range ends before the mapping
    Unmap(bytes_);
    bytes_ = std::exchange(other.bytes_, {});
    guard_ = std::move(other.guard_);
  }
  return *this;
}

MappedFile::~MappedFile() {
  guard_ = {};
  Unmap(bytes_);
}

void Advise(std::span<const std::byte> bytes, MemoryAdvice advice) {
  if (bytes.empty()) return;
  int flag = MADV_WILLNEED;
  switch (advice) {
    case MemoryAdvice::kSequential:
      flag = MADV_SEQUENTIAL;
      break;
    case MemoryAdvice::kRandom:
      flag = MADV_RANDOM;
      break;
    case MemoryAdvice::kWillNeed:
      flag = MADV_WILLNEED;
      break;
    case MemoryAdvice::kDontNeed:
      flag = MADV_DONTNEED;
      break;
  }
  // madvise wants a page-aligned start; tensors begin anywhere, so widen to the page that holds it.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  ::madvise(const_cast<std::byte*>(bytes.data() - before), bytes.size() + before, flag);
}

void Populate(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  // MADV_POPULATE_READ, Linux 5.14; a number because the C library may be older than the kernel.
  constexpr int kPopulateRead = 22;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  auto* begin = const_cast<std::byte*>(bytes.data() - before);
  if (::madvise(begin, bytes.size() + before, kPopulateRead) == 0) return;
  Advise(bytes, MemoryAdvice::kWillNeed);
}

bool InMemory(std::span<const std::byte> bytes) {
  if (bytes.empty()) return true;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<uintptr_t>(bytes.data()) % page;
  auto* at = const_cast<std::byte*>(bytes.data() - before);
  std::array<unsigned char, 512> resident;
  for (size_t left = bytes.size() + before; left > 0;) {
    const size_t part = std::min(left, resident.size() * page);
    if (::mincore(at, part, resident.data()) != 0) return true;
    const size_t pages = (part + page - 1) / page;
    for (size_t i = 0; i < pages; ++i) {
      if ((resident[i] & 1) == 0) return false;
    }
    at += part;
    left -= part;
  }
  return true;
}

}  // namespace fathom
