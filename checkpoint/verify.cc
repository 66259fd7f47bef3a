#include "checkpoint/verify.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <string>

#include "checkpoint/problems.h"

namespace fathom {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;        // one task
constexpr uint64_t kRoundBytes = uint64_t{256} << 20;  // tasks between two calls of `progress`
constexpr uint8_t kNoScale = 255;
constexpr int kExponentBias = 127;

struct Piece {
  size_t tensor = 0;
  size_t offset = 0;  // bytes
  size_t size = 0;
};

// Extremes of scale bytes.
struct Range {
  uint64_t count = 0;
  uint64_t zeros = 0;
  uint8_t low = 255;
  uint8_t high = 0;

  void Add(const Range& other) {
    count += other.count;
    zeros += other.zeros;
    low = std::min(low, other.low);
    high = std::max(high, other.high);
  }
};
// Main parts, then the same of MTP blocks.
using Ranges = std::array<Range, 2 * kNumParts>;

size_t RangeIndex(std::string_view name) {
  return static_cast<size_t>(PartOf(name)) + (name.starts_with("mtp.") ? kNumParts : 0);
}

Range ScaleBytes(std::span<const std::byte> data) {
  Range range;
  range.count = data.size();
  for (const std::byte byte : data) {
    const auto value = static_cast<uint8_t>(byte);
    range.low = std::min(range.low, value);
    range.high = std::max(range.high, value);
    range.zeros += value == 0 ? 1u : 0u;
  }
  return range;
}

// Place of the first element whose exponent bits are all ones; the size when there is none.
template <typename Bits, Bits kExponent>
size_t FirstNotFinite(std::span<const std::byte> data) {
  const size_t count = data.size() / sizeof(Bits);
  const auto bits_at = [data](size_t i) {
    Bits bits = 0;
    std::memcpy(&bits, data.data() + i * sizeof bits, sizeof bits);
    return bits;
  };
  bool found = false;  // no early exit: so the loop runs at the speed of memory
  for (size_t i = 0; i < count; ++i) found |= (bits_at(i) & kExponent) == kExponent;
  size_t i = found ? 0 : count;
  while (i < count && (bits_at(i) & kExponent) != kExponent) ++i;
  return i;
}

bool IsRead(DType dtype) {
  return dtype == DType::kF8E8M0 || dtype == DType::kBF16 || dtype == DType::kF32;
}

// In the order of the bytes in memory, so that a cold file is read from front to back.
std::vector<Piece> Pieces(std::span<const StoredTensor> tensors) {
  std::vector<Piece> pieces;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (!IsRead(tensors[t].dtype)) continue;
    const size_t size = tensors[t].data.size();
    for (size_t at = 0; at < size; at += kPieceBytes) {
      pieces.push_back({t, at, std::min(kPieceBytes, size - at)});
    }
  }
  std::sort(pieces.begin(), pieces.end(), [tensors](const Piece& a, const Piece& b) {
    return tensors[a.tensor].data.data() + a.offset < tensors[b.tensor].data.data() + b.offset;
  });
  return pieces;
}

constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

}  // namespace

Result<VerifyReport> VerifyValues(const Checkpoint& checkpoint, ThreadPool& pool,
                                  const VerifyProgress& progress) {
  const std::span<const StoredTensor> tensors = checkpoint.tensors();
  const std::vector<Piece> pieces = Pieces(tensors);
  uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.size;

  std::vector<Ranges> ranges(static_cast<size_t>(pool.num_threads()));
  // First bad element per tensor; written rarely.
  std::mutex lock;
  std::vector<uint64_t> first_bad(tensors.size(), kNone);
  const auto check = [&](const Piece& piece, int thread) {
    const StoredTensor& tensor = tensors[piece.tensor];
    const std::span<const std::byte> data = tensor.data.subspan(piece.offset, piece.size);
    size_t bad = 0;  // element of the piece
    if (tensor.dtype == DType::kF8E8M0) {
      const Range range = ScaleBytes(data);
      ranges[static_cast<size_t>(thread)][RangeIndex(tensor.name)].Add(range);
      bad = range.high == kNoScale
                ? static_cast<size_t>(std::find(data.begin(), data.end(), std::byte{kNoScale}) -
                                      data.begin())
                : data.size();
    } else if (tensor.dtype == DType::kBF16) {
      bad = FirstNotFinite<uint16_t, 0x7F80>(data);
    } else {
      bad = FirstNotFinite<uint32_t, 0x7F800000>(data);
    }
    const auto element_bytes = static_cast<size_t>(DTypeBytes(tensor.dtype));
    if (bad == data.size() / element_bytes) return;
    const std::lock_guard guard(lock);
    uint64_t& first = first_bad[piece.tensor];
    first = std::min<uint64_t>(first, piece.offset / element_bytes + bad);
  };

  uint64_t done = 0;
  for (size_t begin = 0; begin < pieces.size();) {
    if (progress) progress(done, total);
    size_t end = begin;
    const uint64_t round_end = done + kRoundBytes;
    while (end < pieces.size() && done < round_end) done += pieces[end++].size;
    pool.ParallelFor(static_cast<int64_t>(end - begin), [&](int64_t i, int thread) {
      check(pieces[begin + static_cast<size_t>(i)], thread);
    });
    begin = end;
    FATHOM_RETURN_IF_ERROR(checkpoint.CheckFiles());
  }
  if (progress) progress(done, total);

  Problems problems;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (first_bad[t] == kNone) continue;
    const std::string what = tensors[t].dtype == DType::kF8E8M0
                                 ? " is scale byte 255, which has no value"
                                 : " is NaN or infinite";
    problems.Add(tensors[t].name + " " + ShapeText(tensors[t].shape) + ": element " +
                 std::to_string(first_bad[t]) + what);
  }
  FATHOM_RETURN_IF_ERROR(problems.ToStatus(StatusCode::kDataLoss, "weights"));

  VerifyReport report;
  report.bytes_read = total;
  Ranges sums;
  for (const Ranges& of_thread : ranges) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i].Add(of_thread[i]);
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].count == 0) continue;
    report.scales.push_back({kParts[i % kNumParts], i >= kNumParts, sums[i].count, sums[i].zeros,
                             sums[i].low - kExponentBias, sums[i].high - kExponentBias});
  }
  return report;
}

}  // namespace fathom
