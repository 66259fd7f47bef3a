#include "base/fault_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <utility>

namespace fathom {

// A node of the list that the signal handler walks. Nodes are reused but never freed, so that a
// handler may stand on any of them at any time.
struct GuardedRange::Slot {
  // The range; `end` is 0 while the slot is free. Written under the lock: `end` = 0, `begin`, then
  // `end` (release), so a handler that reads `end`, `begin`, `end` and finds `end` unchanged has a
  // pair that belongs together.
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> damaged{false};
  bool in_use = false;  // guarded by Lock()
  Slot* next = nullptr;
};

namespace {

// Guards registration; handlers read the list without it.
std::mutex& Lock() {
  static std::mutex lock;
  return lock;
}

uintptr_t PageBytes() {
  static const auto kBytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return kBytes;
}

struct sigaction g_previous;

}  // namespace

struct FaultHandler {
  static inline std::atomic<GuardedRange::Slot*> head{nullptr};
  static_assert(std::atomic<GuardedRange::Slot*>::is_always_lock_free);
  static_assert(std::atomic<uintptr_t>::is_always_lock_free);

  // Async-signal-safe: atomics and system calls only.
  static bool Repair(uintptr_t address) {
    for (auto* slot = head.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
      const uintptr_t end = slot->end.load(std::memory_order_acquire);
      const uintptr_t begin = slot->begin.load(std::memory_order_acquire);
      if (address < begin || address >= end) continue;
      if (slot->end.load(std::memory_order_acquire) != end) continue;
      // To the end of the range: a truncated file has lost all of it, and one piece of zeros needs
      // one entry in the kernel's table of mappings, which is limited.
      const uintptr_t page = address - address % PageBytes();
      void* zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                           MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (zeros == MAP_FAILED) return false;
      // Release: whoever computed with the zeros asks afterwards and sees the mark.
      slot->damaged.store(true, std::memory_order_release);
      return true;
    }
    return false;
  }

  static void OnSignal(int signal, siginfo_t* info, void* /*context*/) {
    const int saved_errno = errno;
    // A code above 0 is a fault of this thread; others were sent by kill().
    const bool fault = info->si_code > 0;
    if (!fault || !Repair(reinterpret_cast<uintptr_t>(info->si_addr))) {
      // Not ours: the instruction runs again under the previous action, a sent signal comes again.
      ::sigaction(SIGBUS, &g_previous, nullptr);
      if (!fault) ::raise(signal);
    }
    errno = saved_errno;
  }
};

void InstallFaultGuard() {
  static std::once_flag once;
  std::call_once(once, [] {
    PageBytes();  // its first call must not be the handler's
    struct sigaction action = {};
    action.sa_sigaction = FaultHandler::OnSignal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &g_previous);
  });
}

GuardedRange::Slot* GuardedRange::Acquire() {
  auto& head = FaultHandler::head;
  for (Slot* slot = head.load(std::memory_order_relaxed); slot != nullptr; slot = slot->next) {
    if (!slot->in_use) return slot;
  }
  auto* slot = new Slot;  // never freed, see Slot
  slot->next = head.load(std::memory_order_relaxed);
  head.store(slot, std::memory_order_release);
  return slot;
}

GuardedRange::GuardedRange(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const std::lock_guard lock(Lock());
  slot_ = Acquire();
  slot_->in_use = true;
  slot_->damaged.store(false, std::memory_order_relaxed);
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  slot_->begin.store(begin, std::memory_order_relaxed);
  // Whole pages: the kernel's mapping ends at a page too.
  const uintptr_t pages = (bytes.size() + PageBytes() - 1) / PageBytes();
  slot_->end.store(begin + pages * PageBytes(), std::memory_order_release);
}

GuardedRange::GuardedRange(GuardedRange&& other) noexcept
    : slot_(std::exchange(other.slot_, nullptr)) {}

GuardedRange& GuardedRange::operator=(GuardedRange&& other) noexcept {
  if (this != &other) {
    Release();
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

GuardedRange::~GuardedRange() { Release(); }

void GuardedRange::Release() {
  if (slot_ == nullptr) return;
  const std::lock_guard lock(Lock());
  slot_->end.store(0, std::memory_order_release);
  slot_->in_use = false;
}

bool GuardedRange::damaged() const {
  return slot_ != nullptr && slot_->damaged.load(std::memory_order_acquire);
}

}  // namespace fathom
