#include "model/weight_copy.h"

#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace fathom {
namespace {

constexpr int kReaders = 4;
// One more than the readers can hold, so that they never wait for the one that is on its way.
constexpr size_t kSlots = 2 * kReaders;

// Part of a tensor, at its place in the piece.
struct Segment {
  std::span<const std::byte> from;
  int64_t offset = 0;
};

// Bytes that are next to each other where they go, gaps between tensors included.
struct Piece {
  size_t begin = 0, end = 0;  // of its segments
  std::byte* to = nullptr;
  int64_t bytes = 0;
  DeviceMemory* memory = nullptr;
};

struct Pieces {
  std::vector<Segment> segments;
  std::vector<Piece> pieces;
};

Pieces CutIntoPieces(std::span<const WeightCopy> copies, int64_t piece_bytes) {
  Pieces cut;
  for (const WeightCopy& copy : copies) {
    auto from = copy.from;
    std::byte* to = copy.to;
    while (!from.empty()) {
      Piece* piece = cut.pieces.empty() ? nullptr : &cut.pieces.back();
      const bool joins = piece != nullptr && piece->memory == copy.memory &&
                         to >= piece->to + piece->bytes &&
                         to - (piece->to + piece->bytes) < DeviceMemory::kAlignment &&
                         to - piece->to < piece_bytes;
      if (!joins) {
        cut.pieces.push_back({cut.segments.size(), cut.segments.size(), to, 0, copy.memory});
        piece = &cut.pieces.back();
      }
      const int64_t offset = to - piece->to;
      const auto n = std::min(from.size(), static_cast<size_t>(piece_bytes - offset));
      cut.segments.push_back({from.first(n), offset});
      piece->end = cut.segments.size();
      piece->bytes = offset + static_cast<int64_t>(n);
      from = from.subspan(n);
      to += n;
    }
  }
  return cut;
}

// Pieces are read in any order by the readers and taken in order by the caller. A piece may be read
// when the one before it in its slot was taken.
class Pipeline {
 public:
  Pipeline(const Pieces& work, std::span<std::byte* const> slots) : work_(work), slots_(slots) {
    for (int i = 0; i < kReaders; ++i) {
      readers_.emplace_back([this] { ReadPieces(); });
      pthread_setname_np(readers_.back().native_handle(), "fathom-weights");
    }
  }
  ~Pipeline() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& reader : readers_) reader.join();
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // Waits until piece `i` is read; empty when it is in its place already.
  std::span<const std::byte> Take(size_t i) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return read_[i % kSlots] == i + 1; });
    const Piece& piece = work_.pieces[i];
    if (piece.memory->host_readable()) return {};
    return {slots_[i % kSlots], static_cast<size_t>(piece.bytes)};
  }
  void Done(size_t i) {
    {
      const std::lock_guard lock(mutex_);
      num_done_ = i + 1;
    }
    changed_.notify_all();
  }

 private:
  void ReadPieces() {
    std::unique_lock lock(mutex_);
    while (true) {
      const size_t i = next_++;
      if (i >= work_.pieces.size()) return;
      changed_.wait(lock, [&] { return stopping_ || i < num_done_ + kSlots; });
      if (stopping_) return;
      lock.unlock();
      Read(work_.pieces[i], slots_[i % kSlots]);
      lock.lock();
      read_[i % kSlots] = i + 1;
      changed_.notify_all();
    }
  }
  void Read(const Piece& piece, std::byte* slot) const {
    std::byte* const to = piece.memory->host_readable() ? piece.to : slot;
    for (size_t s = piece.begin; s < piece.end; ++s) {
      const Segment& segment = work_.segments[s];
      std::memcpy(to + segment.offset, segment.from.data(), segment.from.size());
    }
  }

  const Pieces& work_;
  const std::span<std::byte* const> slots_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  size_t next_ = 0;
  size_t num_done_ = 0;
  size_t read_[kSlots] = {};  // 1 + the piece that is in the slot
  bool stopping_ = false;
  std::vector<std::thread> readers_;
};

}  // namespace

Status CopyingWriter::Write(std::span<const WeightCopy> copies, const LoadProgress& progress) {
  const Pieces work = CutIntoPieces(copies, piece_bytes_);
  int64_t total = 0, longest = 0;  // of those that need a slot
  for (const Piece& piece : work.pieces) {
    total += piece.bytes;
    if (!piece.memory->host_readable()) longest = std::max(longest, piece.bytes);
  }
  DeviceBuffer buffer;
  std::byte* slots[kSlots] = {};
  if (longest > 0) {
    const int64_t slot_bytes = (longest + DeviceMemory::kAlignment - 1) / DeviceMemory::kAlignment *
                               DeviceMemory::kAlignment;
    FATHOM_ASSIGN_OR_RETURN(buffer, staging_.Allocate(slot_bytes * static_cast<int64_t>(kSlots)));
    std::memset(buffer.data(), 0, static_cast<size_t>(buffer.bytes()));
    for (size_t i = 0; i < kSlots; ++i) {
      slots[i] = buffer.data() + slot_bytes * static_cast<int64_t>(i);
    }
  }
  Pipeline pipeline(work, slots);
  int64_t done = 0;
  for (size_t i = 0; i < work.pieces.size(); ++i) {
    const Piece& piece = work.pieces[i];
    const std::span<const std::byte> read = pipeline.Take(i);
    if (!read.empty()) FATHOM_RETURN_IF_ERROR(piece.memory->CopyIn(piece.to, read));
    pipeline.Done(i);
    done += piece.bytes;
    if (progress) progress(static_cast<uint64_t>(done), static_cast<uint64_t>(total));
  }
  return OkStatus();
}

}  // namespace fathom
