#include "checkpoint/weight_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/fault_guard.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/test_data.h"

namespace fathom {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ThreadPlacement Nodes(const std::vector<int>& threads_of_nodes) {
  ThreadPlacement placement;
  for (size_t node = 0; node < threads_of_nodes.size(); ++node) {
    placement.node_ids.push_back(static_cast<int>(10 * node));
    for (int t = 0; t < threads_of_nodes[node]; ++t) {
      placement.threads.push_back({static_cast<int>(node), {}});
    }
  }
  return placement;
}

void ExpectCovered(const WeightLayout& layout, size_t page_bytes) {
  size_t at = 0;
  for (const WeightLayout::Chunk& chunk : layout.chunks) {
    EXPECT_EQ(chunk.begin, at);
    EXPECT_GT(chunk.end, chunk.begin);
    EXPECT_EQ(chunk.begin % page_bytes, 0u);
    at = chunk.end;
  }
  EXPECT_EQ(at, layout.bytes);
}

TEST(ParseWeightsMode, KnowsItsWords) {
  for (const WeightsMode mode : {WeightsMode::kMmap, WeightsMode::kCopy, WeightsMode::kHugePages}) {
    EXPECT_EQ(ParseWeightsMode(WeightsModeName(mode)).value(), mode);
  }
  for (const char* bad : {"", "huge", "Copy", "thp"}) EXPECT_FALSE(ParseWeightsMode(bad).ok());
}

TEST(LayOutWeights, TensorsAreAlignedAndChunksCoverThem) {
  const std::vector<size_t> sizes = {1, 64, 65, 0, 10'000'000, 7};
  for (size_t page : {size_t{4096}, size_t{2} << 20}) {
    const WeightLayout layout = LayOutWeights(sizes, page, Nodes({1}));
    EXPECT_THAT(layout.offsets, ElementsAre(0, 64, 128, 256, 256, 10'000'256));
    EXPECT_EQ(layout.bytes % page, 0u);
    EXPECT_GE(layout.bytes, layout.offsets.back() + sizes.back());
    ExpectCovered(layout, page);
  }
}

TEST(LayOutWeights, PagesGoToTheNodeThatHasMostOfThem) {
  constexpr size_t kPage = 4096;
  std::mt19937 random(5);
  std::vector<size_t> sizes;
  for (int i = 0; i < 40; ++i) sizes.push_back(random() % (kPage * 12));
  const ThreadPlacement placement = Nodes({1, 2, 1});
  const WeightLayout layout = LayOutWeights(sizes, kPage, placement);
  ExpectCovered(layout, kPage);
  // Byte by byte, what each node should have of each page.
  std::map<size_t, std::map<int, int>> share;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<int64_t>(sizes[i]);
    for (int64_t b = 0; b < size; ++b) {
      int node = 0;
      while (b >= placement.PartBegin(size, node + 1)) ++node;
      ++share[(layout.offsets[i] + static_cast<size_t>(b)) / kPage][node];
    }
  }
  for (const WeightLayout::Chunk& chunk : layout.chunks) {
    for (size_t page = chunk.begin / kPage; page < chunk.end / kPage; ++page) {
      for (const auto& [node, bytes] : share[page]) {
        EXPECT_LE(bytes, share[page][chunk.node]) << "page " << page << ", node " << node;
      }
    }
  }
}

TEST(LayOutWeights, LargeMatricesAreSlicedByRows) {
  constexpr size_t kPage = 4096;
  const std::vector<size_t> sizes = {64 * kPage, 64 * kPage};
  const WeightLayout layout = LayOutWeights(sizes, kPage, Nodes({3, 1}));
  ASSERT_EQ(layout.chunks.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.chunks[i].node, static_cast<int>(i % 2));
    EXPECT_EQ(layout.chunks[i].end - layout.chunks[i].begin, (i % 2 == 0 ? 48 : 16) * kPage);
  }
}

// Copies of tensor data by name, to compare with.
std::map<std::string, std::vector<std::byte>> Contents(const Checkpoint& checkpoint) {
  std::map<std::string, std::vector<std::byte>> contents;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    contents[tensor.name].assign(tensor.data.begin(), tensor.data.end());
  }
  return contents;
}

class CopiedCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry : std::filesystem::directory_iterator(TinyA())) {
      std::filesystem::copy_file(entry.path(), folder_.path() / entry.path().filename());
    }
  }
  TempDirectory folder_;
};

TEST_F(CopiedCheckpoint, HoldsTheSameBytesOnAnyNodesAndPages) {
  const auto expected = Contents(Checkpoint::Open(folder_.path()).value());
  for (const bool huge : {false, true}) {
    for (const std::vector<int>& nodes : {std::vector<int>{1}, {2}, {1, 1}, {1, 1, 2}}) {
      auto checkpoint = Checkpoint::Open(folder_.path());
      ASSERT_TRUE(checkpoint.ok());
      ThreadPool pool(Nodes(nodes));
      CopyOptions options;
      options.huge_pages = huge;
      options.take_pages_from = [](int) { return false; };  // a system that refuses
      uint64_t last = 0;
      uint64_t all = 0;
      options.progress = [&](uint64_t done, uint64_t total) {
        EXPECT_GT(done, last);
        last = done;
        all = total;
      };
      const Status status = checkpoint->CopyToMemory(pool, options);
      ASSERT_TRUE(status.ok()) << status.ToString();
      EXPECT_EQ(last, all);
      EXPECT_GE(all, checkpoint->total_bytes());
      EXPECT_EQ(Contents(*checkpoint), expected);
      EXPECT_EQ(checkpoint->files().size(), 1u);
      for (const StoredTensor& tensor : checkpoint->tensors()) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data.data()) % 64, 0u);
      }
    }
  }
}

TEST_F(CopiedCheckpoint, AsksForPagesOfEveryNodeAndStopsAsking) {
  auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  ThreadPool pool(Nodes({1, 1}));
  std::mutex mutex;
  std::unordered_map<std::thread::id, std::vector<int>> asked;
  CopyOptions options;
  options.take_pages_from = [&](int node) {
    const std::lock_guard lock(mutex);
    asked[std::this_thread::get_id()].push_back(node);
    return true;
  };
  ASSERT_TRUE(checkpoint->CopyToMemory(pool, options).ok());
  std::map<int, int> count;
  for (const auto& [thread, nodes] : asked) {
    EXPECT_EQ(nodes.back(), -1);
    for (const int node : nodes) ++count[node];
  }
  EXPECT_GT(count[0], 0);
  EXPECT_GT(count[10], 0);
  EXPECT_EQ(count[-1], count[0] + count[10]);
}

TEST_F(CopiedCheckpoint, FilesMayGoAwayAfterwards) {
  InstallFaultGuard();
  auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  const auto expected = Contents(*checkpoint);
  ThreadPool pool(2);
  ASSERT_TRUE(checkpoint->CopyToMemory(pool, {}).ok());
  std::filesystem::resize_file(folder_.path() / "model.safetensors", 4096);
  EXPECT_EQ(Contents(*checkpoint), expected);
  EXPECT_TRUE(checkpoint->CheckFiles().ok());
}

TEST_F(CopiedCheckpoint, FilesThatGoAwayBeforeAreAnError) {
  InstallFaultGuard();
  auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  std::filesystem::resize_file(folder_.path() / "model.safetensors", size_t{1} << 20);
  ThreadPool pool(2);
  const Status status = checkpoint->CopyToMemory(pool, {});
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace fathom
