// See backend/ops/sample.h for the contract.
#include <vector>

#include "backend/choose_token.h"
#include "backend/reference/reference_backend.h"

namespace fathom {

Status ReferenceBackend::DoSample(const SampleArgs& args) {
  std::vector<TokenCandidate> scratch;
  for (size_t m = 0; m < args.rows.size(); ++m) {
    const SampleRow& row = args.rows[m];
    const std::span<float> logits = args.logits.row(args.indices[m]);
    const std::vector<float> raw(logits.begin(), logits.end());
    const TokenId token = ChooseToken(row, logits, scratch);
    args.tokens.data()[m] = token;
    args.logprobs.data()[m] =
        row.logprob ? SumLogits(raw).LogProbability(raw[static_cast<size_t>(token)]) : 0.0f;
  }
  return OkStatus();
}

}  // namespace fathom
