// fathom inspect: what a model is, before it is loaded.

#include <filesystem>
#include <iostream>
#include <memory>

#include "base/mapped_file.h"
#include "cli/command.h"
#include "cli/inspect_report.h"
#include "cli/loaded_model.h"
#include "cli/progress.h"

namespace fathom::cli {
namespace {

struct Options {
  std::string model;
  int num_threads = 0;
  bool json = false;
  bool verify = false;
};

Result<ModelConfig> ReadConfig(const std::filesystem::path& path) {
  FATHOM_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseModelConfig({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                          path.string());
}

Result<Inspection> Inspect(const Options& o) {
  FATHOM_ASSIGN_OR_RETURN(ModelLocation location, FindModel(o.model, ModelNeed::kConfig));
  // With weights, all of them: half a download is an error that says how to complete it.
  if (location.has_weights || o.verify) {
    FATHOM_ASSIGN_OR_RETURN(location, FindModel(o.model, ModelNeed::kWeights));
  }
  Inspection found;
  found.name = location.name;
  found.config_path = location.config.string();
  if (!location.directory.empty()) {
    std::error_code error;
    const auto exists = [&](const char* name) {
      return std::filesystem::exists(location.directory / name, error);
    };
    found.has_tokenizer = exists("tokenizer.json");
    found.has_generation_config = exists("generation_config.json");
  }
  if (!location.has_weights && !o.verify) {
    FATHOM_ASSIGN_OR_RETURN(found.config, ReadConfig(location.config));
    return found;
  }
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(location.directory));
  found.config = checkpoint.config();
  found.has_weights = true;
  found.files = checkpoint.files();
  found.notes = checkpoint.notes();
  if (o.verify) {
    ThreadPool pool(o.num_threads > 0 ? o.num_threads : DefaultThreadCount());
    ProgressBar progress("verifying");
    FATHOM_ASSIGN_OR_RETURN(
        found.verified, VerifyValues(checkpoint, pool, [&progress](uint64_t done, uint64_t total) {
          progress.Update(done, total);
        }));
  }
  return found;
}

int Run(const Options& o) {
  auto found = Inspect(o);
  if (!found.ok()) return Fail(found.status());
  if (o.json) {
    PrintJson(*found, std::cout);
  } else {
    PrintText(*found, std::cout);
  }
  return 0;
}

}  // namespace

void AddInspectCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "inspect", "Show a model's geometry, parameters and bytes; nothing is loaded");
  command
      ->add_option("model", o->model,
                   "Directory, config.json, or org/name[@revision] in the local Hugging Face cache "
                   "(default: the bundled fathom-nano)")
      ->type_name("MODEL");
  command->add_flag("--json", o->json, "Print one JSON object");
  command->add_flag("--verify", o->verify,
                    "Read all scales and all bf16 and fp32 values, and check them");
  command
      ->add_option("-t,--threads", o->num_threads,
                   "Threads that verify (default: OMP_NUM_THREADS, else one per processor)")
      ->check(CLI::Range(1, 1024));
  command->footer(
      "Where weights are present, their names, shapes and types are compared with the config.\n"
      "Example:\n"
      "  fathom inspect deepseek-ai/DeepSeek-V4-Flash --verify");
  command->callback([o, &action] { action = [o] { return Run(*o); }; });
}

}  // namespace fathom::cli
