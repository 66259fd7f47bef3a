#include "backend/plugin/elf_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace fathom::plugin {
namespace {

#if defined(__x86_64__)
constexpr uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = EM_AARCH64;
#else
constexpr uint16_t kMachine = EM_NONE;  // not known: the loader judges
#endif

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool Read(void* to, size_t bytes, uint64_t offset) const {
    return pread(fd_, to, bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes);
  }

 private:
  int fd_;
};

Status NoSharedLibrary() { return InvalidArgument("not a shared library (64-bit ELF)"); }

}  // namespace

Status CheckSharedLibrary(const std::string& path) {
  const OpenFile file(path);
  if (file.fd() < 0) return NotFound(std::strerror(errno));
  struct stat info = {};
  if (fstat(file.fd(), &info) != 0) return NotFound(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return InvalidArgument("not a regular file");
  const auto size = static_cast<uint64_t>(info.st_size);
  Elf64_Ehdr header;
  if (!file.Read(&header, sizeof(header), 0) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN) {
    return NoSharedLibrary();
  }
  const bool little = header.e_ident[EI_DATA] == ELFDATA2LSB;
  if (!little || (kMachine != EM_NONE && header.e_machine != kMachine)) {
    return InvalidArgument("a shared library for another kind of machine (ELF machine " +
                           std::to_string(header.e_machine) + ")");
  }
  const uint64_t table_bytes = uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
  if (header.e_phentsize != sizeof(Elf64_Phdr) || header.e_phnum == 0) return NoSharedLibrary();
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  if (header.e_phoff > size || !file.Read(segments.data(), table_bytes, header.e_phoff)) {
    return DataLoss("a shared library that was cut short: " + std::to_string(size) + " bytes");
  }
  for (const Elf64_Phdr& segment : segments) {
    if (segment.p_filesz == 0) continue;
    if (segment.p_offset <= size && segment.p_filesz <= size - segment.p_offset) continue;
    return DataLoss("a shared library that was cut short: " + std::to_string(size) +
                    " bytes, of which a segment should be bytes " +
                    std::to_string(segment.p_offset) + " to " +
                    std::to_string(segment.p_offset + segment.p_filesz - 1));
  }
  return OkStatus();
}

}  // namespace fathom::plugin
