#include "checkpoint/weight_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/mapped_file.h"

namespace fathom {
namespace {

constexpr size_t kTensorAlignment = 64;
constexpr size_t kChunkBytes = size_t{4} << 20;
// Chunks between two calls of progress().
constexpr size_t kBatch = 32;

// The node that has most of each page's bytes.
std::vector<int> NodesOfPages(std::span<const size_t> sizes, const WeightLayout& layout,
                              size_t page_bytes, const ThreadPlacement& placement) {
  std::vector<int> nodes(layout.bytes / page_bytes, 0);
  if (placement.num_nodes() <= 1) return nodes;
  size_t page = 0;
  std::vector<size_t> share(static_cast<size_t>(placement.num_nodes()), 0);
  const auto finish_page = [&] {
    nodes[page] = static_cast<int>(std::max_element(share.begin(), share.end()) - share.begin());
    std::fill(share.begin(), share.end(), size_t{0});
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    for (int node = 0; node < placement.num_nodes(); ++node) {
      const auto part = [&](int n) {
        const int64_t begin = placement.PartBegin(static_cast<int64_t>(sizes[i]), n);
        return layout.offsets[i] + static_cast<size_t>(begin);
      };
      const size_t end = part(node + 1);
      for (size_t at = part(node); at < end;) {
        if (at / page_bytes != page) {
          finish_page();
          page = at / page_bytes;
        }
        const size_t next = std::min(end, (page + 1) * page_bytes);
        share[static_cast<size_t>(node)] += next - at;
        at = next;
      }
    }
  }
  if (!nodes.empty()) finish_page();
  return nodes;
}

// The part of the tensors that lies in `chunk` of the new memory.
void CopyChunk(std::span<const StoredTensor> tensors, const WeightLayout& layout,
               const WeightLayout::Chunk& chunk, std::byte* memory) {
  const auto behind = std::upper_bound(layout.offsets.begin(), layout.offsets.end(), chunk.begin);
  auto i = static_cast<size_t>(behind - layout.offsets.begin());
  if (i > 0) --i;
  for (; i < tensors.size() && layout.offsets[i] < chunk.end; ++i) {
    const std::span<const std::byte> data = tensors[i].data;
    const size_t begin = std::max(chunk.begin, layout.offsets[i]);
    const size_t end = std::min(chunk.end, layout.offsets[i] + data.size());
    if (begin >= end) continue;
    const auto source = data.subspan(begin - layout.offsets[i], end - begin);
    // In one request to the disk instead of one per fault; and this process needs the pages of the
    // file no more, so that the system can have them back.
    Populate(source);
    std::memcpy(memory + begin, source.data(), source.size());
    Advise(source, MemoryAdvice::kDontNeed);
  }
}

}  // namespace

Result<WeightsMode> ParseWeightsMode(std::string_view text) {
  for (const WeightsMode mode : {WeightsMode::kMmap, WeightsMode::kCopy, WeightsMode::kHugePages}) {
    if (text == WeightsModeName(mode)) return mode;
  }
  return InvalidArgument("'" + std::string(text.substr(0, 64)) +
                         "': there are mmap, copy and hugepages");
}

std::string_view WeightsModeName(WeightsMode mode) {
  switch (mode) {
    case WeightsMode::kMmap:
      return "mmap";
    case WeightsMode::kCopy:
      return "copy";
    case WeightsMode::kHugePages:
      return "hugepages";
  }
  return "";
}

WeightLayout LayOutWeights(std::span<const size_t> sizes, size_t page_bytes,
                           const ThreadPlacement& placement) {
  const auto round_up = [](size_t value, size_t unit) { return (value + unit - 1) / unit * unit; };
  WeightLayout layout;
  layout.offsets.reserve(sizes.size());
  for (const size_t size : sizes) {
    layout.offsets.push_back(layout.bytes);
    layout.bytes += round_up(size, kTensorAlignment);
  }
  layout.bytes = round_up(layout.bytes, page_bytes);
  const std::vector<int> nodes = NodesOfPages(sizes, layout, page_bytes, placement);
  for (size_t page = 0; page < nodes.size(); ++page) {
    if (layout.chunks.empty() || layout.chunks.back().node != nodes[page] ||
        layout.chunks.back().end - layout.chunks.back().begin >= kChunkBytes) {
      layout.chunks.push_back({page * page_bytes, page * page_bytes, nodes[page]});
    }
    layout.chunks.back().end += page_bytes;
  }
  return layout;
}

Result<AnonymousMemory> CopyTensors(std::span<StoredTensor> tensors, ThreadPool& pool,
                                    const CopyOptions& options) {
  std::vector<size_t> sizes;
  sizes.reserve(tensors.size());
  for (const StoredTensor& tensor : tensors) sizes.push_back(tensor.data.size());
  const size_t page = options.huge_pages ? AnonymousMemory::kHugePageBytes
                                         : static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const ThreadPlacement& placement = pool.placement();
  const WeightLayout layout = LayOutWeights(sizes, page, placement);
  FATHOM_ASSIGN_OR_RETURN(AnonymousMemory memory,
                          AnonymousMemory::Create(layout.bytes, options.huge_pages));
  const bool several_nodes = placement.num_nodes() > 1;
  for (size_t begin = 0; begin < layout.chunks.size(); begin += kBatch) {
    const size_t count = std::min(kBatch, layout.chunks.size() - begin);
    pool.ParallelFor(static_cast<int64_t>(count), [&](int64_t i) {
      const WeightLayout::Chunk& chunk = layout.chunks[begin + static_cast<size_t>(i)];
      if (several_nodes) {
        options.take_pages_from(placement.node_ids[static_cast<size_t>(chunk.node)]);
      }
      CopyChunk(tensors, layout, chunk, memory.bytes().data());
      if (several_nodes) options.take_pages_from(-1);
    });
    if (options.progress) options.progress(layout.chunks[begin + count - 1].end, layout.bytes);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].data = memory.bytes().subspan(layout.offsets[i], sizes[i]);
  }
  memory.MakeReadOnly();
  return memory;
}

}  // namespace fathom
