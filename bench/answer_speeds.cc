#include "bench/answer_speeds.h"

#include <memory>
#include <string>
#include <utility>

#include "bench/long_sequence.h"
#include "engine/sequence_runner.h"

namespace fathom::bench {

Result<std::vector<Spread>> AnswerSpeeds(Model& model, const std::vector<int64_t>& contexts,
                                         const ModelBenchOptions& o) {
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<SequenceRunner> runner,
      SequenceRunner::Create(model, o.engine.numerics, AnswersLength(contexts, o),
                             o.engine.cache_dtypes));
  LongSequence sequence(*runner, model.config().vocab_size, o.engine.max_batched_tokens,
                        o.computed_tokens);
  std::vector<Spread> speeds;
  for (const int64_t context : contexts) {
    FATHOM_RETURN_IF_ERROR(sequence.GoTo(context - 1));
    for (int step = 0; step < kWarmSteps; ++step) {
      FATHOM_RETURN_IF_ERROR(sequence.Decode().status());
    }
    std::vector<double> tokens_per_s;
    for (int repeat = 0; repeat < o.repeats; ++repeat) {
      double ms = 0.0;
      for (int step = 0; step < o.num_steps; ++step) {
        FATHOM_ASSIGN_OR_RETURN(const double step_ms, sequence.Decode());
        ms += step_ms;
      }
      tokens_per_s.push_back(o.num_steps * 1e3 / ms);
    }
    speeds.push_back(SpreadOf(std::move(tokens_per_s)));
  }
  return speeds;
}

int64_t AnswersLength(const std::vector<int64_t>& contexts, const ModelBenchOptions& o) {
  return contexts.empty()
             ? 0
             : contexts.back() + kWarmSteps - 1 + int64_t{o.num_steps} * int64_t{o.repeats};
}

ReportTable SpeedsTable(const std::string& name, const std::string& first,
                        const std::string& second, const std::vector<int64_t>& contexts,
                        const std::vector<Spread>& first_speeds,
                        const std::vector<Spread>& second_speeds) {
  ReportTable table{
      name,
      {"context_tokens", first + "_tokens_per_s", first + "_low", first + "_high",
       second + "_tokens_per_s", second + "_low", second + "_high", second + "_over_" + first},
      {}};
  for (size_t i = 0; i < contexts.size(); ++i) {
    const Spread& a = first_speeds[i];
    const Spread& b = second_speeds[i];
    table.rows.push_back(
        {contexts[i], a.median, a.low, a.high, b.median, b.low, b.high, b.median / a.median});
  }
  return table;
}

}  // namespace fathom::bench
