#include "server/openai_format.h"

#include <algorithm>

#include "server/json_text.h"

namespace fathom::openai {
namespace {

void AppendMember(std::string_view name, int64_t value, std::string* out) {
  out->push_back('"');
  out->append(name).append("\":");
  AppendJsonInt(value, out);
}

std::string Head(std::string_view begin, const AnswerHead& head, std::string_view object) {
  std::string text(begin);
  text += "{\"id\":";
  AppendJsonString(head.id, &text);
  text += ",\"object\":";
  AppendJsonString(object, &text);
  text += ",\"created\":";
  AppendJsonInt(head.created, &text);
  text += ",\"model\":";
  AppendJsonString(head.model, &text);
  return text;
}

}  // namespace

void AppendUsage(const Usage& usage, std::string* out) {
  out->push_back('{');
  AppendMember("prompt_tokens", usage.prompt_tokens, out);
  out->push_back(',');
  AppendMember("completion_tokens", usage.completion_tokens, out);
  out->push_back(',');
  AppendMember("total_tokens", usage.prompt_tokens + usage.completion_tokens, out);
  *out += ",\"prompt_tokens_details\":{";
  AppendMember("cached_tokens", usage.cached_tokens, out);
  *out += "},\"completion_tokens_details\":{";
  AppendMember("reasoning_tokens", usage.reasoning_tokens, out);
  *out += "},";
  AppendMember("prompt_cache_hit_tokens", usage.cached_tokens, out);
  out->push_back(',');
  AppendMember("prompt_cache_miss_tokens", usage.prompt_tokens - usage.cached_tokens, out);
  out->push_back('}');
}

void AppendStopReason(const ChoiceEnd& end, std::string* out) {
  if (const auto* token = std::get_if<TokenId>(&end.stop_reason)) return AppendJsonInt(*token, out);
  if (const auto* text = std::get_if<std::string>(&end.stop_reason)) {
    return AppendJsonString(*text, out);
  }
  *out += "null";
}

void AppendTokenIds(const std::vector<TokenId>& ids, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendJsonInt(ids[i], out);
  }
  out->push_back(']');
}

double FiniteLogprob(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

std::string TokenText(const LogprobEntry::Candidate& token, bool as_id) {
  return as_id ? "token_id:" + std::to_string(token.token) : token.bytes;
}

void AppendPromptLogprobs(const PromptEcho& prompt, std::string* out) {
  auto append_token = [out](const LogprobEntry::Candidate& token, size_t rank) {
    out->push_back('"');
    AppendJsonInt(token.token, out);
    *out += "\":{\"logprob\":";
    AppendJsonNumber(FiniteLogprob(token.logprob), out);
    *out += ",\"rank\":";
    if (rank > 0) {
      AppendJsonInt(static_cast<int64_t>(rank), out);
    } else {
      *out += "null";  // only those of the most likely tokens are known
    }
    *out += ",\"decoded_token\":";
    AppendJsonString(token.bytes, out);
    out->push_back('}');
  };
  out->push_back('[');
  for (const LogprobEntry& entry : prompt.logprobs) {
    if (entry.is_first) {
      *out += "null";
      continue;
    }
    *out += ",{";
    const auto same = std::find_if(entry.top.begin(), entry.top.end(), [&entry](const auto& top) {
      return top.token == entry.chosen.token;
    });
    const auto rank = static_cast<size_t>(same - entry.top.begin()) + 1;
    append_token(entry.chosen, same == entry.top.end() ? 0 : rank);
    for (size_t i = 0; i < entry.top.size(); ++i) {
      if (entry.top[i].token == entry.chosen.token) continue;
      out->push_back(',');
      append_token(entry.top[i], i + 1);
    }
    out->push_back('}');
  }
  out->push_back(']');
}

std::string ChunkHead(const AnswerHead& head, std::string_view object) {
  return Head("data: ", head, object);
}

std::string WholeHead(const AnswerHead& head, std::string_view object) {
  return Head("", head, object);
}

void AppendStreamEnd(const std::string& chunk_head, const Usage* usage, std::string* out) {
  if (usage != nullptr) {
    out->append(chunk_head).append(",\"choices\":[],\"usage\":");
    AppendUsage(*usage, out);
    *out += "}\n\n";
  }
  *out += "data: [DONE]\n\n";
}

void AppendStreamError(const RequestError& error, std::string* out) {
  out->append("data: ").append(ErrorBody(error)).append("\n\ndata: [DONE]\n\n");
}

}  // namespace fathom::openai
