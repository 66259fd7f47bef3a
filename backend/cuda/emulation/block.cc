#include "backend/cuda/emulation/block.h"

#include <ucontext.h>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace fathom::emulation {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kMostShared = size_t{227} << 10;
constexpr int kWarp = 32;

[[noreturn]] void Die(const char* what, int a, int b) {
  std::fprintf(stderr, "CUDA emulation: %s (%d, %d)\n", what, a, b);
  std::abort();
}

enum class Doing { kRunning, kWaitingForBlock, kExchanging, kDone };

// A fiber begins by ucontext, which saves the signal mask with a system call; it goes on by
// _longjmp, which does not.
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t begin = {};
  std::jmp_buf resume = {};
  bool begun = false;
  Doing doing = Doing::kDone;
  int exchanges = 0;
};

struct Warp {
  int lanes = 0;
  // Two exchanges: a lane can be one ahead of those that still read the one before.
  int given[2] = {};
  char values[2][kWarp][16] = {};
};

class Block {
 public:
  void Run(const std::function<void()>& thread, const Index3& size, size_t shared_bytes) {
    thread_ = &thread;
    count_ = static_cast<int>(size.x * size.y * size.z);
    at_barrier_ = done_ = 0;
    if (fibers_.size() < static_cast<size_t>(count_)) fibers_.resize(static_cast<size_t>(count_));
    warps_.assign(static_cast<size_t>((count_ + kWarp - 1) / kWarp), Warp());
    for (int i = 0; i < count_; ++i) {
      ++warps_[static_cast<size_t>(i / kWarp)].lanes;
      Prepare(fibers_[static_cast<size_t>(i)]);
    }
    std::memset(shared_, 0xFF, shared_bytes);
    while (done_ < count_) {
      bool any = false;
      for (int k = 0; k < count_; ++k) {
        const int i = reverse_ ? count_ - 1 - k : k;
        if (fibers_[static_cast<size_t>(i)].doing != Doing::kRunning) continue;
        any = true;
        Enter(i, size);
        LeaveBarrier();
      }
      if (!any) Die("threads wait for each other (at the barrier, done)", at_barrier_, done_);
    }
  }

  void WaitForBlock() {
    current().doing = Doing::kWaitingForBlock;
    ++at_barrier_;
    LeaveBarrier();
    if (current().doing != Doing::kRunning) Pause();
  }

  void Exchange(const void* value, size_t size) {
    Fiber& fiber = current();
    Warp& warp = warp_of_current();
    const int which = ++fiber.exchanges % 2;
    if (size > sizeof(warp.values[0][0])) Die("exchange of bytes", static_cast<int>(size), 0);
    std::memcpy(warp.values[which][place.lane], value, size);
    if (++warp.given[which] < warp.lanes) {
      fiber.doing = Doing::kExchanging;
      return Pause();
    }
    warp.given[which] = 0;
    const int first = current_ / kWarp * kWarp;
    for (int i = first; i < first + warp.lanes; ++i) {
      Fiber& other = fibers_[static_cast<size_t>(i)];
      if (other.doing == Doing::kExchanging) other.doing = Doing::kRunning;
    }
  }

  const void* Given(int lane) { return warp_of_current().values[current().exchanges % 2][lane]; }

  std::byte* shared() { return shared_; }

  Place place;

 private:
  Fiber& current() { return fibers_[static_cast<size_t>(current_)]; }
  Warp& warp_of_current() { return warps_[static_cast<size_t>(current_ / kWarp)]; }

  void Prepare(Fiber& fiber) {
    if (fiber.stack == nullptr) fiber.stack.reset(new char[kStackBytes]);
    fiber.begun = false;
    fiber.doing = Doing::kRunning;
    fiber.exchanges = 0;
  }

  void Enter(int i, const Index3& size) {
    current_ = i;
    const auto thread = static_cast<unsigned>(i);
    place.thread = {thread % size.x, thread / size.x % size.y, thread / (size.x * size.y)};
    place.lane = i % kWarp;
    Fiber& fiber = current();
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.resume, 1);
    fiber.begun = true;
    getcontext(&fiber.begin);
    fiber.begin.uc_stack.ss_sp = fiber.stack.get();
    fiber.begin.uc_stack.ss_size = kStackBytes;
    fiber.begin.uc_link = nullptr;
    makecontext(&fiber.begin, &Block::Body, 0);
    setcontext(&fiber.begin);
  }

  static void Body();

  // Back to the scheduler until somebody makes this fiber run again.
  void Pause() {
    if (_setjmp(current().resume) == 0) _longjmp(scheduler_, 1);
  }

  void LeaveBarrier() {
    if (at_barrier_ == 0 || at_barrier_ + done_ < count_) return;
    at_barrier_ = 0;
    for (int i = 0; i < count_; ++i) {
      Fiber& fiber = fibers_[static_cast<size_t>(i)];
      if (fiber.doing == Doing::kWaitingForBlock) fiber.doing = Doing::kRunning;
    }
  }

  const bool reverse_ = std::getenv("FATHOM_EMULATION_REVERSE") != nullptr;
  const std::function<void()>* thread_ = nullptr;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::jmp_buf scheduler_ = {};
  int current_ = 0;
  int count_ = 0;
  int at_barrier_ = 0;
  int done_ = 0;
  alignas(128) std::byte shared_[kMostShared] = {};
};

Block& TheBlock() {
  static Block* const block = new Block;  // fibers may outlive static destructors
  return *block;
}

void Block::Body() {
  Block& block = TheBlock();
  (*block.thread_)();
  block.current().doing = Doing::kDone;
  ++block.done_;
  _longjmp(block.scheduler_, 1);
}

}  // namespace

const Place& Here() { return TheBlock().place; }
void WaitForBlock() { TheBlock().WaitForBlock(); }
void Exchange(const void* value, size_t size) { TheBlock().Exchange(value, size); }
const void* Given(int lane) { return TheBlock().Given(lane); }
std::byte* SharedBytes() { return TheBlock().shared(); }

void RunGrid(const Index3& grid, const Index3& block, size_t shared_bytes,
             const std::function<void()>& thread) {
  constexpr unsigned kMostY = 65535;
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > 1024) Die("threads of a block", static_cast<int>(threads), 0);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > kMostY || grid.z > kMostY) {
    Die("blocks of a grid (y, z)", static_cast<int>(grid.y), static_cast<int>(grid.z));
  }
  if (shared_bytes > kMostShared) Die("bytes of shared memory", static_cast<int>(shared_bytes), 0);
  Block& running = TheBlock();
  running.place.grid_size = grid;
  running.place.block_size = block;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        running.place.block = {x, y, z};
        running.Run(thread, block, shared_bytes);
      }
    }
  }
}

}  // namespace fathom::emulation
