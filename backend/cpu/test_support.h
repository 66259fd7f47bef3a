// Random inputs, weights and cache pages for the tests of CpuBackend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "backend/page_codec.h"
#include "backend/step_plan.h"
#include "backend/weights.h"
#include "base/formats.h"
#include "base/tensor_view.h"

namespace fathom::test {

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  float Normal() { return normal_(engine_); }
  std::vector<float> Normals(int64_t n, float scale = 1.0f) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = Normal() * scale;
    return v;
  }
  // What operations hand to each other in official numerics.
  std::vector<float> Bf16s(int64_t n, float scale = 1.0f) {
    std::vector<float> v = Normals(n, scale);
    for (float& x : v) x = RoundToBf16(x);
    return v;
  }

 private:
  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
};

inline TensorView<float> View(std::vector<float>& v, int64_t rows) {
  return {v.data(), rows, static_cast<int64_t>(v.size()) / rows};
}

// A weight in memory of its own.
struct TestWeight {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
  WeightView view;
};

// Any codes but NaN, scales around `middle` (a ue8m0 byte; 127 is 1).
inline TestWeight MakeWeight(Random& random, DType dtype, int rows, int cols, int middle = 119) {
  TestWeight w;
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(cols);
  const auto scales = [&](int num) {
    w.scale.resize(static_cast<size_t>(num));
    for (uint8_t& s : w.scale) s = static_cast<uint8_t>(random.Int(middle - 3, middle + 3));
  };
  switch (dtype) {
    case DType::kF8E4M3:
      w.data.resize(count);
      for (uint8_t& c : w.data) {
        do {
          c = static_cast<uint8_t>(random.Int(0, 255));
        } while ((c & 0x7F) == 0x7F);
      }
      scales((rows + 127) / 128 * ((cols + 127) / 128));
      break;
    case DType::kI8:
      w.data.resize(count / 2);
      for (uint8_t& c : w.data) c = static_cast<uint8_t>(random.Int(0, 255));
      scales(rows * (cols / 32));
      break;
    case DType::kBF16:
      w.data.resize(count * 2);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t bits = FloatToBf16(random.Normal() * 0.05f);
        std::memcpy(w.data.data() + 2 * i, &bits, sizeof(bits));
      }
      break;
    default:
      w.data.resize(count * 4);
      for (size_t i = 0; i < count; ++i) {
        const float x = random.Normal() * 0.05f;
        std::memcpy(w.data.data() + 4 * i, &x, sizeof(x));
      }
      break;
  }
  w.view = {dtype, w.data.data(), w.scale.empty() ? nullptr : w.scale.data(), rows, cols};
  return w;
}

// The pages of one kind for several sequences, in shuffled blocks.
class TestPages {
 public:
  TestPages(Random& random, PageFormat format, int num_sequences, int64_t entries_each) {
    const int64_t pages_each =
        (entries_each + format.entries_per_page - 1) / format.entries_per_page;
    const int64_t pages = pages_each * num_sequences;
    const int64_t stride = format.content_bytes() + 32;  // not what the content needs
    memory_.resize(static_cast<size_t>(pages * stride));
    view_ = {format, memory_.data(), stride};
    blocks_.resize(static_cast<size_t>(pages));
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = static_cast<int32_t>(i);
    for (size_t i = blocks_.size(); i > 1; --i) {
      std::swap(blocks_[i - 1],
                blocks_[static_cast<size_t>(random.Int(0, static_cast<int>(i) - 1))]);
    }
    for (int s = 0; s < num_sequences; ++s) {
      tables_.push_back({blocks_.data() + s * pages_each, pages_each});
    }
  }
  TestPages(const TestPages&) = delete;
  TestPages& operator=(const TestPages&) = delete;

  void Fill(Random& random, int64_t entries_each) {
    for (const BlockTable& table : tables_) {
      for (int64_t j = 0; j < entries_each; ++j) {
        StoreEntry(view_.format, Locate(view_, table, j), random.Bf16s(view_.format.dim));
      }
    }
  }

  [[nodiscard]] const PageView& view() const { return view_; }
  [[nodiscard]] std::span<const BlockTable> tables() const { return tables_; }
  [[nodiscard]] std::vector<std::byte>& memory() { return memory_; }

 private:
  std::vector<std::byte> memory_;
  PageView view_;
  std::vector<int32_t> blocks_;
  std::vector<BlockTable> tables_;
};

// A StepPlan with the memory that it borrows.
struct TestPlan {
  std::vector<TokenId> ids;
  std::vector<Position> positions;
  std::vector<SequenceRows> sequences;
  StepPlan plan;

  // One sequence per (start, rows) pair.
  explicit TestPlan(std::vector<std::pair<Position, int>> parts) {
    for (const auto& [start, rows] : parts) {
      sequences.push_back({static_cast<int>(ids.size()), rows, start});
      for (int i = 0; i < rows; ++i) {
        ids.push_back(0);
        positions.push_back(start + i);
      }
    }
    plan.token_ids = ids;
    plan.positions = positions;
    plan.sequences = sequences;
  }
  TestPlan(const TestPlan&) = delete;
  TestPlan& operator=(const TestPlan&) = delete;
  void SetTables(CacheKind kind, std::span<const BlockTable> tables) {
    plan.tables[static_cast<size_t>(ClassOf(kind))] = tables;
  }
};

}  // namespace fathom::test
