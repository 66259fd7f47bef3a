#include "bench/turns_bench.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "bench/workload.h"

namespace fathom::bench {
namespace {

struct Turn {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  double first_token_ms = 0.0;  // from the request's arrival

  [[nodiscard]] int64_t computed_tokens() const { return prompt_tokens - cached_tokens; }
};

Result<Turn> RunTurn(EngineCore& core, RequestId id, const std::string& salt,
                     const std::vector<TokenId>& prompt, int64_t answer_tokens,
                     std::vector<TokenId>* answer) {
  const auto sink = std::make_shared<CollectingSink>(answer_tokens);
  GenerateRequest request = GreedyRequest(prompt, answer_tokens);
  request.cache_salt = salt;
  FATHOM_ASSIGN_OR_RETURN(EngineCore::JobPtr job, core.Prepare(id, std::move(request), sink));
  core.Add(std::move(job));
  while (!core.idle()) core.Step();
  const FinishEvent& finish = sink->finish();
  if (finish.reason != FinishReason::kLength) {
    return finish.error.ok() ? Internal("a request ended early") : finish.error;
  }
  *answer = sink->tokens();
  const std::chrono::duration<double, std::milli> wait =
      finish.timings.first_token - finish.timings.arrival;
  return Turn{static_cast<int64_t>(prompt.size()), finish.cached_tokens, wait.count()};
}

// `changes`: the next prompt has another token in place of each answer's first.
Result<std::vector<Turn>> RunConversation(EngineCore& core, const std::string& salt, int num_turns,
                                          bool changes, const TurnsBenchOptions& o) {
  const int vocab = core.info().vocab_size;
  std::vector<TokenId> prompt = SyntheticTokens(0, o.system_tokens, vocab);
  std::vector<TokenId> answer;
  std::vector<Turn> turns;
  for (int i = 1; i <= num_turns; ++i) {
    const std::vector<TokenId> question = SyntheticTokens(i, o.question_tokens, vocab);
    prompt.insert(prompt.end(), question.begin(), question.end());
    FATHOM_ASSIGN_OR_RETURN(const Turn turn,
                            RunTurn(core, i, salt, prompt, o.answer_tokens, &answer));
    turns.push_back(turn);
    if (changes) answer[0] = (answer[0] + 1) % vocab;
    prompt.insert(prompt.end(), answer.begin(), answer.end());
  }
  return turns;
}

ReportTable TableOf(const std::string& name, const std::vector<Turn>& turns) {
  ReportTable table{
      name, {"turn", "prompt_tokens", "cached_tokens", "computed_tokens", "first_token_ms"}, {}};
  for (size_t i = 0; i < turns.size(); ++i) {
    const Turn& t = turns[i];
    table.rows.push_back({static_cast<int64_t>(i + 1), t.prompt_tokens, t.cached_tokens,
                          t.computed_tokens(), t.first_token_ms});
  }
  return table;
}

// Medians of the turns after the first; a conversation of one turn has none.
void Summarise(const std::string& name, const std::vector<Turn>& turns, Report& report) {
  std::vector<double> computed, waits;
  for (size_t i = 1; i < turns.size(); ++i) {
    computed.push_back(static_cast<double>(turns[i].computed_tokens()));
    waits.push_back(turns[i].first_token_ms);
  }
  if (computed.empty()) return;
  report.summary.emplace_back(name + "_computed_tokens_median", SpreadOf(computed).median);
  const Spread wait = SpreadOf(waits);
  report.summary.emplace_back(name + "_first_token_ms_median", wait.median);
  report.summary.emplace_back(name + "_first_token_ms_low", wait.low);
  report.summary.emplace_back(name + "_first_token_ms_high", wait.high);
}

Result<std::unique_ptr<EngineCore>> MakeCore(const std::filesystem::path& model,
                                             LocalEngineOptions engine, bool prefix_caching,
                                             const TurnsBenchOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(model));
  const int64_t turn = o.question_tokens + o.answer_tokens;
  const int64_t room = checkpoint.config().max_position_embeddings - o.system_tokens;
  const int turns = std::max(o.turns, o.turns_without_cache);
  if (room < 0 || turns > room / turn) {
    return InvalidArgument(
        std::to_string(turns) + " turns of " + std::to_string(turn) + " tokens behind " +
        std::to_string(o.system_tokens) + ": more than the model's " +
        std::to_string(checkpoint.config().max_position_embeddings) + " positions");
  }
  engine.max_model_len = o.system_tokens + turns * turn;
  engine.prefix_caching = prefix_caching;
  return EngineCore::Create(std::move(checkpoint), {}, engine);
}

}  // namespace

Result<Report> BenchTurns(const std::filesystem::path& model, const TurnsBenchOptions& o) {
  Report report;
  report.bench = "turns";
  report.conditions = MachineConditions();
  const int threads = o.engine.num_threads > 0 ? o.engine.num_threads : DefaultThreadCount();
  report.conditions.insert(report.conditions.end(),
                           {{"model", model.filename().string()},
                            {"backend", o.engine.backend},
                            {"threads", int64_t{threads}},
                            {"tokens_of_a_step", int64_t{o.engine.max_batched_tokens}},
                            {"system_tokens", o.system_tokens},
                            {"question_tokens", o.question_tokens},
                            {"answer_tokens", o.answer_tokens},
                            {"repetitions", int64_t{1}}});
  const auto add = [&](const std::string& name, const std::vector<Turn>& turns) {
    report.tables.push_back(TableOf(name, turns));
    Summarise(name, turns, report);
  };
  std::vector<Turn> cached;
  {
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<EngineCore> core,
                            MakeCore(model, o.engine, true, o));
    FATHOM_ASSIGN_OR_RETURN(cached, RunConversation(*core, "repeated", o.turns, false, o));
    add("repeated", cached);
    FATHOM_ASSIGN_OR_RETURN(const std::vector<Turn> changed,
                            RunConversation(*core, "changed", o.turns, true, o));
    add("changed", changed);
  }
  if (o.turns_without_cache == 0) return report;
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<EngineCore> core,
                          MakeCore(model, o.engine, false, o));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<Turn> plain,
                          RunConversation(*core, "", o.turns_without_cache, false, o));
  add("uncached", plain);
  // The same turn of both conversations.
  const size_t both = std::min(plain.size(), cached.size());
  if (both >= 2) {
    const Turn &with = cached[both - 1], &without = plain[both - 1];
    report.summary.emplace_back("compared_turn", static_cast<int64_t>(both));
    report.summary.emplace_back("computed_tokens_ratio",
                                static_cast<double>(without.computed_tokens()) /
                                    static_cast<double>(with.computed_tokens()));
    report.summary.emplace_back("first_token_ratio", without.first_token_ms / with.first_token_ms);
  }
  return report;
}

}  // namespace fathom::bench
