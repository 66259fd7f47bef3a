// Parts that the OpenAI formats of chat and of completions share: usage, log-probabilities,
// reasons.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/answer_format.h"

namespace fathom::openai {

// {"prompt_tokens": ..., ...}
void AppendUsage(const Usage& usage, std::string* out);
// The matched stop string or token id, or null.
void AppendStopReason(const ChoiceEnd& end, std::string* out);
void AppendTokenIds(const std::vector<TokenId>& ids, std::string* out);
// JSON has no infinities; clients expect the least value that vLLM gives.
double FiniteLogprob(float logprob);
// "token_id:7", or the token's text.
std::string TokenText(const LogprobEntry::Candidate& token, bool as_id);
// vLLM's form: per prompt token null, or a map from ids to logprob, rank and text.
void AppendPromptLogprobs(const PromptEcho& prompt, std::string* out);

// `data: {"id": ..., "object": ..., "created": ..., "model": ...`, what every chunk begins with.
std::string ChunkHead(const AnswerHead& head, std::string_view object);
// The same for a whole answer.
std::string WholeHead(const AnswerHead& head, std::string_view object);
// The chunk after the last choice, if asked for, and the end mark.
void AppendStreamEnd(const std::string& chunk_head, const Usage* usage, std::string* out);
void AppendStreamError(const RequestError& error, std::string* out);

}  // namespace fathom::openai
