#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "chat/chat_request.h"
#include "chat/dsml_tag.h"
#include "chat/json_parse.h"
#include "chat/markers.h"
#include "chat/output_message.h"
#include "chat/output_parser.h"
#include "tests/fuzz/targets.h"

namespace fathom::fuzz {
namespace {

constexpr std::string_view kTools = R"([
  {"name": "f", "parameters": {"properties": {
    "s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"},
    "u": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}},
  {"name": "g"}])";

OutputParserOptions OptionsOf(uint8_t bits) {
  OutputParserOptions options;
  options.start = (bits & 1) != 0 ? OutputState::kReasoning : OutputState::kContent;
  if ((bits & 2) == 0) {
    static const JsonValue kList = *ParseJson(kTools);
    options.tools = *kList.IfArray();
  }
  options.swallow_calls = (bits & 4) != 0;
  options.parallel_tool_calls = (bits & 8) == 0;
  options.split_reasoning = (bits & 16) == 0;
  return options;
}

struct Parsed {
  OutputMessage message;
  bool all_calls_complete = true;
};

// `pieces` gives the size of the next piece.
template <typename Pieces>
Parsed Parse(uint8_t bits, std::string_view text, Pieces pieces) {
  OutputParser parser(OptionsOf(bits));
  Parsed parsed;
  std::vector<OutputDelta> deltas;
  const auto take = [&] {
    for (const OutputDelta& delta : deltas) {
      FATHOM_CHECK(!delta.text.empty(), "no empty delta");
      parsed.message.Add(delta);
    }
    deltas.clear();
  };
  while (!text.empty()) {
    const size_t size = std::min<size_t>(pieces(), text.size());
    parser.Push(text.substr(0, size), &deltas);
    text.remove_prefix(size);
    take();
  }
  parser.Finish((bits & 32) != 0 ? OutputEnd::kCut : OutputEnd::kStop, &deltas);
  take();
  parsed.all_calls_complete = parser.all_calls_complete();
  FATHOM_CHECK(parser.num_calls() == static_cast<int>(parsed.message.calls.size()), "calls");
  return parsed;
}

// Whether half of a mark may stand in front of another: taking that one out may then leave a whole
// one.
bool MayJoin(std::string_view text) {
  constexpr size_t kLongestHalf = 32;
  size_t last = std::string_view::npos;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<' && last != std::string_view::npos && i - last <= kLongestHalf) return true;
    if (text[i] == '<') last = i;
    if (text[i] == '>' || text[i] == ' ') last = std::string_view::npos;
  }
  return false;
}

bool HasMark(std::string_view text, bool tags, bool think_marks) {
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(markers::kEos)) return true;
    if (think_marks &&
        (rest.starts_with(markers::kThinkOpen) || rest.starts_with(markers::kThinkClose))) {
      return true;
    }
    DsmlTagMatcher matcher;
    matcher.Reset();
    for (size_t i = 1; tags && i < rest.size(); ++i) {
      if (matcher.Push(rest[i]) != DsmlTagMatcher::Step::kMore) break;
      if (matcher.head_size() > 0) return true;
    }
  }
  return false;
}

}  // namespace

void ModelOutput(std::span<const uint8_t> bytes) {
  if (bytes.size() < 2) return;
  const uint8_t bits = bytes[0];
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + 2, bytes.size() - 2);
  const Parsed whole = Parse(bits, text, [&] { return text.size(); });
  std::minstd_rand random(bytes[1] + 1u);
  for (const unsigned largest : {1u, 5u, 40u}) {
    const Parsed pieces = Parse(bits, text, [&] { return 1 + random() % largest; });
    FATHOM_CHECK(pieces.message == whole.message, "the cuts make no difference");
    FATHOM_CHECK(pieces.all_calls_complete == whole.all_calls_complete, "nor for completeness");
  }
  const bool reads_tags = (bits & 2) == 0 || (bits & 4) != 0;
  if (!MayJoin(text)) {
    FATHOM_CHECK(!HasMark(whole.message.content, reads_tags, (bits & 16) == 0), "no mark leaks");
  }
  if (!ParseJson(JsonStringText(text)).ok()) return;  // not UTF-8; nor can arguments be JSON then
  const auto& calls = whole.message.calls;
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool is_complete = i + 1 < calls.size() || whole.all_calls_complete;
    FATHOM_CHECK(ParseArguments(calls[i].arguments).has_value() == is_complete,
                 "whole calls have JSON arguments, others can't be run");
  }
}

void ChatRequest(std::span<const uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const Result<JsonValue> body = ParseJson(text);
  if (!body.ok()) return;
  for (const EffortProfile profile : {EffortProfile::kPreview, EffortProfile::k0731}) {
    ChatOptions options;
    options.effort_profile = profile;
    PreparedChat chat;
    if (PrepareChat(*body, options, chat)) continue;
    FATHOM_CHECK(!chat.segments.empty(), "a prompt begins with its own mark");
    for (size_t i = 0; i < chat.segments.size(); ++i) {
      FATHOM_CHECK(!chat.segments[i].text.empty(), "no empty segment");
      FATHOM_CHECK(i == 0 || chat.segments[i].from_template != chat.segments[i - 1].from_template,
                   "neighbours differ");
    }
    FATHOM_CHECK(chat.Text().starts_with(markers::kBos), "which is the begin token");
  }
  if (const JsonValue* messages = body->Find("messages")) {
    const auto official = ReadOfficialMessages(*messages);
    if (official.ok()) (void)EncodeChat(*official, {}).ok();
  }
}

}  // namespace fathom::fuzz
