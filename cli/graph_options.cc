#include "cli/graph_options.h"

#include <algorithm>
#include <utility>

#include "cli/arguments.h"
#include "cli/vllm_json_flags.h"

namespace fathom::cli {
namespace {

constexpr const char* kConfig = "--compilation-config";
constexpr const char* kEager = "--enforce-eager";
constexpr const char* kSizes = "--cudagraph-capture-sizes";
constexpr const char* kMaxSize = "--max-cudagraph-capture-size";

std::string KeyOfConfig(const std::string& key) { return std::string(kConfig) + " " + key; }

// The options together, and the name of one that records steps and of one that records none: empty
// where there is none.
struct Said {
  CompilationConfig config;
  std::optional<std::vector<int>> sizes;
  std::optional<int> max_size;
  std::string sizes_by, max_size_by;
  std::string on, off;
};

Result<Said> Read(const GraphFlags& flags) {
  Said said;
  if (!flags.compilation_config.empty()) {
    FATHOM_ASSIGN_OR_RETURN(said.config, ParseCompilationConfig(flags.compilation_config));
  }
  const CompilationConfig& config = said.config;
  if (config.sizes && !flags.sizes.empty()) {
    return InvalidArgument(std::string(kSizes) + " and " + KeyOfConfig("cudagraph_capture_sizes") +
                           ": the sizes are given twice");
  }
  if (config.max_size && flags.max_size) {
    return InvalidArgument(std::string(kMaxSize) + " and " +
                           KeyOfConfig("max_cudagraph_capture_size") +
                           ": the largest size is given twice");
  }
  said.sizes = config.sizes;
  said.sizes_by = KeyOfConfig("cudagraph_capture_sizes");
  if (!flags.sizes.empty()) {
    said.sizes = flags.sizes;
    said.sizes_by = kSizes;
  }
  said.max_size = flags.max_size ? flags.max_size : config.max_size;
  said.max_size_by = flags.max_size ? kMaxSize : KeyOfConfig("max_cudagraph_capture_size");

  const auto note = [&said](bool records, const std::string& by) {
    std::string& first = records ? said.on : said.off;
    if (first.empty()) first = by;
  };
  if (flags.enforce_eager) note(false, kEager);
  if (config.mode) {
    note(*config.mode != GraphMode::kNone,
         KeyOfConfig("cudagraph_mode ") + std::string(GraphModeName(*config.mode)));
  }
  if (said.sizes) note(!said.sizes->empty(), said.sizes_by);
  if (said.max_size) {
    note(*said.max_size > 0, said.max_size_by + " " + std::to_string(*said.max_size));
  }
  return said;
}

}  // namespace

void AddGraphOptions(CLI::App& command, GraphFlags& flags) {
  const char* group = "Recorded steps (CUDA graphs), with --backend cuda";
  command
      .add_option(kConfig, flags.compilation_config,
                  "cudagraph_mode: NONE, PIECEWISE, FULL, FULL_DECODE_ONLY, FULL_AND_PIECEWISE "
                  "(default); cudagraph_capture_sizes and max_cudagraph_capture_size as below")
      ->type_name(kJsonType)
      ->check(Parses(ParseCompilationConfig))
      ->group(group);
  command.add_flag(kEager, flags.enforce_eager, "Record none, as cudagraph_mode NONE")
      ->default_function([&flags] { return std::string(flags.enforce_eager ? "true" : "false"); })
      ->group(group);
  command
      .add_option(kSizes, flags.sizes,
                  "Tokens of the steps that are recorded; others are filled up to the next size "
                  "(default: 1, 2, 4, 8, 16, then further apart)")
      ->delimiter(',')
      ->transform(Count(1, kMostGraphTokens))
      ->group(group);
  command
      .add_option(kMaxSize, flags.max_size,
                  "Tokens of the largest of them; 0: none are recorded (default: 512, or "
                  "--max-num-batched-tokens if that is less)")
      ->check(CLI::Range(0, kMostGraphTokens))
      ->group(group);
}

Result<std::optional<GraphOptions>> ToGraphOptions(const GraphFlags& flags) {
  FATHOM_ASSIGN_OR_RETURN(Said said, Read(flags));
  if (said.on.empty() && said.off.empty()) return std::optional<GraphOptions>();
  GraphOptions options;
  if (!said.off.empty()) {
    if (!said.on.empty()) {
      return InvalidArgument(said.off + ": records no steps and contradicts " + said.on +
                             "; leave one of them out");
    }
    options.mode = GraphMode::kNone;
    return std::optional(std::move(options));
  }
  options.mode = said.config.mode.value_or(options.mode);
  if (said.sizes) {
    options.sizes = std::move(*said.sizes);
    if (said.max_size) {
      std::erase_if(options.sizes, [&said](int size) { return size > *said.max_size; });
    }
    if (options.sizes.empty()) {
      return InvalidArgument(said.max_size_by + " " + std::to_string(*said.max_size) +
                             ": is below all of " + said.sizes_by);
    }
  } else if (said.max_size) {
    options.sizes = DefaultGraphSizes(*said.max_size);
  }
  return std::optional(std::move(options));
}

Status CheckGraphFlags(const GraphFlags& flags, const std::string& backend) {
  if (backend == "cuda") return OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const Said said, Read(flags));
  if (said.on.empty()) return OkStatus();
  return InvalidArgument(said.on + ": refused; the " + backend +
                         " backend records no steps, the cuda backend does");
}

std::vector<std::string> GraphWarnings(const GraphFlags& flags, const std::string& backend) {
  std::vector<std::string> warnings;
  const Result<Said> said = Read(flags);
  if (!said.ok()) return warnings;
  const CompilationConfig& config = said->config;
  std::string keys;
  const auto add_key = [&keys](const std::string& key) {
    keys += (keys.empty() ? "" : ", ") + key;
  };
  const std::string why = "the " + backend + " backend records no steps";
  const bool records = backend == "cuda";
  if (!records && config.mode.value_or(GraphMode::kNone) != GraphMode::kNone) {
    add_key("cudagraph_mode");
  }
  if (!records && config.sizes && !config.sizes->empty()) add_key("cudagraph_capture_sizes");
  if (!records && config.max_size.value_or(0) > 0) add_key("max_cudagraph_capture_size");
  const bool graphs = !keys.empty();
  for (const std::string& key : config.others) add_key(key);
  if (!keys.empty()) {
    constexpr const char* kNoCompiler = "nothing is compiled at run time";
    warnings.push_back(std::string(kConfig) + ": no effect; " + keys + ": " +
                       (!graphs                 ? kNoCompiler
                        : config.others.empty() ? why
                                                : why + " and " + kNoCompiler));
  }
  if (!records && flags.max_size.value_or(0) > 0) {
    warnings.push_back(std::string(kMaxSize) + ": no effect; " + why);
  }
  if (!records && !flags.sizes.empty()) {
    warnings.push_back(std::string(kSizes) + ": no effect; " + why);
  }
  return warnings;
}

}  // namespace fathom::cli
