// The answers of /v1/completions.
#include <algorithm>
#include <utility>

#include "server/json_text.h"
#include "server/openai_format.h"
#include "tokenizer/utf8.h"

namespace fathom {
namespace {

// Names of a map must differ, so a part of a character is written as its bytes, as OpenAI does.
std::string MapName(const std::string& text) {
  if (FindInvalidUtf8(text) == std::string::npos) return text;
  static constexpr char kHex[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    name.append("\\x").push_back(kHex[byte >> 4]);
    name.push_back(kHex[byte & 15]);
  }
  return name;
}

int64_t NumCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(const AnswerHead& head, OpenAiOptions options)
      : chunk_head_(openai::ChunkHead(head, "text_completion")),
        whole_head_(openai::WholeHead(head, "text_completion")),
        options_(std::move(options)) {}

  void Begin(const Usage&, std::string*) override {}

  void BeginChoice(int choice, const PromptEcho& prompt, const ChunkExtras&,
                   std::string*) override {
    // Goes out with the first chunk that there is: this format has none for a beginning.
    if (static_cast<size_t>(choice) >= begun_.size())
      begun_.resize(static_cast<size_t>(choice) + 1);
    AppendPrompt(prompt, &begun_[static_cast<size_t>(choice)]);
  }

  void Delta(int choice, const OutputDelta& delta, const ChunkExtras& extras,
             std::string* out) override {
    BeginChunk(choice, out);
    AppendBody(choice, delta.text, extras.logprobs, out);
    *out += ",\"finish_reason\":null,\"stop_reason\":null";
    EndChunk(choice, extras, out);
  }

  void EndChoice(int choice, const ChoiceEnd& end, const ChunkExtras& extras,
                 std::string* out) override {
    BeginChunk(choice, out);
    AppendBody(choice, "", extras.logprobs, out);
    AppendEnd(end, out);
    EndChunk(choice, extras, out);
  }

  void End(const Usage& usage, std::string* out) override {
    openai::AppendStreamEnd(chunk_head_, options_.include_usage ? &usage : nullptr, out);
  }

  void Error(const RequestError& error, std::string* out) override {
    openai::AppendStreamError(error, out);
  }

  std::string Whole(const std::vector<Choice>& choices, const Usage& usage) override {
    std::string out = whole_head_ + ",\"choices\":[";
    for (size_t i = 0; i < choices.size(); ++i) {
      const Choice& choice = choices[i];
      out += i > 0 ? ",{\"index\":" : "{\"index\":";
      AppendJsonInt(static_cast<int64_t>(i), &out);
      AppendBody(static_cast<int>(i), choice.message.content,
                 options_.logprobs ? &choice.logprobs : nullptr, &out);
      AppendEnd(choice.end, &out);
      if (options_.token_ids) {
        out += ",\"token_ids\":";
        openai::AppendTokenIds(choice.token_ids, &out);
      }
      if (options_.prompt_logprobs) {
        out += ",\"prompt_logprobs\":";
        openai::AppendPromptLogprobs(choice.prompt, &out);
      }
      AppendPrompt(choice.prompt, &out);
      out.push_back('}');
    }
    out += "],\"usage\":";
    openai::AppendUsage(usage, &out);
    out += ",\"system_fingerprint\":null}";
    return out;
  }

 private:
  void BeginChunk(int choice, std::string* out) const {
    out->append(chunk_head_).append(",\"choices\":[{\"index\":");
    AppendJsonInt(choice, out);
  }

  void EndChunk(int choice, const ChunkExtras& extras, std::string* out) {
    if (extras.token_ids != nullptr) {
      *out += ",\"token_ids\":";
      openai::AppendTokenIds(*extras.token_ids, out);
    }
    if (static_cast<size_t>(choice) < begun_.size()) {
      *out += std::exchange(begun_[static_cast<size_t>(choice)], {});
    }
    *out += "}]";
    if (extras.usage != nullptr) {
      *out += ",\"usage\":";
      openai::AppendUsage(*extras.usage, out);
    }
    *out += "}\n\n";
  }

  void AppendBody(int choice, std::string_view text, const std::vector<LogprobEntry>* logprobs,
                  std::string* out) {
    *out += ",\"text\":";
    AppendJsonString(text, out);
    *out += ",\"logprobs\":";
    AppendLogprobs(choice, logprobs, out);
  }

  static void AppendEnd(const ChoiceEnd& end, std::string* out) {
    *out += ",\"finish_reason\":";
    AppendJsonString(end.finish_reason, out);
    *out += ",\"stop_reason\":";
    openai::AppendStopReason(end, out);
  }

  static void AppendPrompt(const PromptEcho& prompt, std::string* out) {
    if (prompt.token_ids.empty()) return;
    *out += ",\"prompt_token_ids\":";
    openai::AppendTokenIds(prompt.token_ids, out);
  }

  [[nodiscard]] std::string Name(const LogprobEntry::Candidate& token) const {
    return MapName(openai::TokenText(token, options_.tokens_as_ids));
  }

  void AppendTop(const LogprobEntry& entry, std::string* out) const {
    if (entry.is_first) {
      *out += "null";
      return;
    }
    out->push_back('{');
    auto append = [this, out](const LogprobEntry::Candidate& token) {
      AppendJsonString(Name(token), out);
      out->push_back(':');
      AppendJsonNumber(openai::FiniteLogprob(token.logprob), out);
    };
    append(entry.chosen);
    for (const LogprobEntry::Candidate& candidate : entry.top) {
      if (candidate.token == entry.chosen.token) continue;
      out->push_back(',');
      append(candidate);
    }
    out->push_back('}');
  }

  // Offsets count the characters of all tokens of a choice, over its chunks.
  void AppendLogprobs(int choice, const std::vector<LogprobEntry>* entries, std::string* out) {
    if (entries == nullptr || entries->empty()) {
      *out += "null";
      return;
    }
    if (static_cast<size_t>(choice) >= offsets_.size())
      offsets_.resize(static_cast<size_t>(choice) + 1);
    int64_t& offset = offsets_[static_cast<size_t>(choice)];
    std::string tokens, logprobs, tops, offsets;
    for (const LogprobEntry& entry : *entries) {
      for (std::string* list : {&tokens, &logprobs, &tops, &offsets}) {
        if (!list->empty()) list->push_back(',');
      }
      AppendJsonString(Name(entry.chosen), &tokens);
      if (entry.is_first) {
        logprobs += "null";
      } else {
        AppendJsonNumber(openai::FiniteLogprob(entry.chosen.logprob), &logprobs);
      }
      AppendTop(entry, &tops);
      AppendJsonInt(offset, &offsets);
      offset += NumCharacters(entry.chosen.bytes);
    }
    out->append("{\"tokens\":[").append(tokens).append("],\"token_logprobs\":[").append(logprobs);
    out->append("],\"top_logprobs\":[").append(tops).append("],\"text_offset\":[").append(offsets);
    *out += "]}";
  }

  const std::string chunk_head_, whole_head_;
  const OpenAiOptions options_;
  std::vector<int64_t> offsets_;    // by choice
  std::vector<std::string> begun_;  // members for the next chunk, by choice
};

}  // namespace

std::unique_ptr<AnswerFormat> NewCompletionFormat(AnswerHead head, OpenAiOptions options) {
  return std::make_unique<CompletionFormat>(head, std::move(options));
}

}  // namespace fathom
