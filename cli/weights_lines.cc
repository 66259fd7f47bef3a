#include "cli/weights_lines.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace fathom::cli {
namespace {

std::string Gigabytes(uint64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) / 1e9);
}

// Of weights that are larger than memory: what will happen, and how much of it at each token.
std::string BeyondMemory(const WeightsReport& r) {
  const std::string memory =
      r.memory.known() ? fmt::format("of {} memory {} is available",
                                     Gigabytes(static_cast<uint64_t>(r.memory.total_bytes)),
                                     Gigabytes(static_cast<uint64_t>(r.memory.available_bytes)))
                       : "this system does not say how much memory is available";
  const bool dense_fits = r.token_dense_bytes < static_cast<uint64_t>(r.memory.available_bytes);
  return fmt::format(
      "weights: {} mapped from {} file(s), but {}: they are not read ahead, and parts of them are "
      "read from disk again and again, at the disk's speed. A token reads {} that every token "
      "needs{}, and {} of chosen experts, out of {}, which are asked of the disk as soon as they "
      "are known",
      Gigabytes(r.bytes), r.num_files, memory, Gigabytes(r.token_dense_bytes),
      dense_fits ? " (they tend to stay in memory)" : " (more than memory holds)",
      Gigabytes(r.token_expert_bytes), Gigabytes(r.expert_bytes));
}

void DescribeHugePages(const WeightsReport& r, std::vector<LogLine>& lines) {
  const auto huge = static_cast<uint64_t>(r.huge_page_bytes);
  if (r.huge_page_policy.empty() || r.huge_page_policy == "never") {
    lines.push_back(
        {true, fmt::format("--weights hugepages: this system gives no huge pages "
                           "(transparent_hugepage/enabled is {}; madvise would be enough), so the "
                           "weights are in plain ones",
                           r.huge_page_policy.empty() ? "absent" : r.huge_page_policy)});
  } else if (huge < r.bytes - r.bytes / 10) {
    lines.push_back({true, fmt::format("--weights hugepages: the system had huge pages for {} of "
                                       "{}; its memory is fragmented",
                                       Gigabytes(huge), Gigabytes(r.bytes))});
  }
}

}  // namespace

std::vector<LogLine> DescribeWeights(const WeightsReport& r) {
  std::vector<LogLine> lines;
  const std::string files = fmt::format("{} file(s)", r.num_files);
  if (!r.device.empty()) {
    lines.push_back({false, fmt::format("weights: {} of {} copied to {} from {}",
                                        Gigabytes(static_cast<uint64_t>(r.device_bytes)),
                                        Gigabytes(r.bytes), r.device, files)});
    if (r.plan && r.plan->num_host_experts > 0) {
      lines.push_back(
          {false, fmt::format("experts: {} of {} routed ones ({}) lie in page-locked host memory "
                              "and are read there by the device",
                              r.plan->num_host_experts, r.plan->weights.num_experts,
                              Gigabytes(static_cast<uint64_t>(r.pinned_bytes)))});
    }
    return lines;
  }
  switch (r.mode) {
    case WeightsMode::kMmap:
      if (r.exceed_memory) {
        lines.push_back({true, BeyondMemory(r)});
        break;
      }
      lines.push_back(
          {false, fmt::format("weights: {} mapped from {} and read ahead, used in place",
                              Gigabytes(r.bytes), files)});
      if (r.expert_prefetch) {
        // No warning: it may be that the system is still reading.
        lines.push_back({false,
                         "weights: not all of them are in memory now; chosen experts are asked of "
                         "the disk as soon as they are known"});
      }
      break;
    case WeightsMode::kCopy:
      lines.push_back({false, fmt::format("weights: {} copied into memory from {}",
                                          Gigabytes(r.bytes), files)});
      break;
    case WeightsMode::kHugePages:
      lines.push_back(
          {false, fmt::format("weights: {} copied into memory from {}, {} of it in huge pages",
                              Gigabytes(r.bytes), files,
                              Gigabytes(static_cast<uint64_t>(r.huge_page_bytes)))});
      DescribeHugePages(r, lines);
      break;
  }
  if (r.num_nodes > 1) {
    const std::string nodes =
        fmt::format("memory nodes: {}, each with its share of the threads", r.num_nodes);
    lines.push_back({false, r.mode == WeightsMode::kMmap
                                ? nodes +
                                      "; mapped weights lie where the system read them, --weights "
                                      "copy or hugepages shares them out too"
                                : nodes + " and of the weights"});
  }
  return lines;
}

void LogWeights(const WeightsReport& report) {
  for (const LogLine& line : DescribeWeights(report)) {
    line.is_warning ? spdlog::warn("{}", line.text) : spdlog::info("{}", line.text);
  }
}

}  // namespace fathom::cli
