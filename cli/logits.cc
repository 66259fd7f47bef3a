// fathom logits: logits of every position of a token sequence, for comparison with other
// implementations.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "cli/command.h"
#include "cli/loaded_model.h"
#include "cli/weights_lines.h"
#include "engine/local_model.h"
#include "engine/sequence_runner.h"

namespace fathom::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string tokens;
  std::string out;
  std::string mode = "official";
};

Result<std::vector<TokenId>> ReadIds(const std::string& path, int vocab_size) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadInput(path));
  auto ids = ParseTokenIds(text, vocab_size);
  if (!ids.ok()) return InvalidArgument(path + ": " + ids.status().message());
  if (ids->empty()) return InvalidArgument(path + ": expected at least one token id");
  return ids;
}

Status ComputeLogits(const Options& o) {
  FATHOM_ASSIGN_OR_RETURN(const std::filesystem::path directory, ResolveModel(o.model.model));
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  for (const std::string& note : checkpoint.notes()) spdlog::info("{}", note);
  const int vocab = checkpoint.config().vocab_size;
  FATHOM_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, ReadIds(o.tokens, vocab));
  const int64_t limit = o.model.max_model_len > 0 ? o.model.max_model_len
                                                  : checkpoint.config().max_position_embeddings;
  const auto n = static_cast<int64_t>(ids.size());
  if (n > limit) {
    return InvalidArgument(o.tokens + ": " + std::to_string(n) + " tokens, the context holds " +
                           std::to_string(limit));
  }

  const Numerics numerics = o.mode == "exact" ? Numerics::kExact : Numerics::kOfficial;
  const int step = static_cast<int>(std::min<int64_t>(o.model.max_batched_tokens, n));
  FATHOM_ASSIGN_OR_RETURN(LocalEngineOptions options, ToEngineOptions(o.model));
  options.numerics = numerics;
  FATHOM_ASSIGN_OR_RETURN(const CacheDemand cache,
                          CacheDemandOf(checkpoint.config(), options, 1, n));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<LocalModel> local,
                          LocalModel::Load(checkpoint, options, step, n, cache));
  LogWeights(local->weights());
  local->pool().BindOwner();
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SequenceRunner> runner,
                          SequenceRunner::Create(local->model(), numerics, n));

  std::vector<float> logits(ids.size() * static_cast<size_t>(vocab));
  const auto start = std::chrono::steady_clock::now();
  for (size_t begin = 0; begin < ids.size(); begin += static_cast<size_t>(step)) {
    const size_t rows = std::min(ids.size() - begin, static_cast<size_t>(step));
    FATHOM_RETURN_IF_ERROR(
        runner->Step(std::span(ids).subspan(begin, rows), SequenceRunner::Logits::kAll,
                     std::span(logits).subspan(begin * static_cast<size_t>(vocab),
                                               rows * static_cast<size_t>(vocab))));
  }
  FATHOM_RETURN_IF_ERROR(checkpoint.CheckFiles());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  spdlog::info("{} tokens in {:.2f} s, {} backend, {} numerics", n, took.count(),
               local->backend().name(), o.mode);

  StoredTensor tensor;
  tensor.name = "logits";
  tensor.dtype = DType::kF32;
  tensor.shape = {n, vocab};
  tensor.data = std::as_bytes(std::span<const float>(logits));
  return WriteSafetensors(o.out, {&tensor, 1});
}

}  // namespace

void AddLogitsCommand(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      app.add_subcommand("logits", "Write the logits of every position of a token sequence");
  command->add_option("--tokens", o->tokens, "JSON array of token ids; - is standard input")
      ->type_name("FILE")
      ->required();
  command->add_option("-o,--out", o->out, "Safetensors file: `logits` F32 [tokens, vocabulary]")
      ->type_name("FILE")
      ->required();
  command
      ->add_option(
          "--mode", o->mode,
          "official follows the official code's rounding points; exact is float32 without any")
      ->check(CLI::IsMember({"official", "exact"}))
      ->capture_default_str();
  AddModelOptions(*command, o->model);
  command->footer("Needs no tokenizer.");
  command->callback([o, &action] {
    action = [o] {
      const Status status = ComputeLogits(*o);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace fathom::cli
