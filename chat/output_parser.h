// Reads the model's text, as it streams, into reasoning, content and tool calls.
//
// One reader for streamed and whole answers: the joined deltas don't depend on how the text was
// cut. Marks and tags never reach the client. What may become one is held until the next characters
// tell, and so are line feeds that a block may drop and values whose type their end decides;
// everything else goes out with the text that brought it. Malformed and cut markup is repaired
// where that is safe, and counted. Linear in the text. Thread safety: single-threaded.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "chat/json_value.h"
#include "chat/output_lexer.h"
#include "chat/parser_repairs.h"
#include "chat/tool_call_writer.h"
#include "chat/tool_values.h"

namespace fathom {

enum class OutputState { kReasoning, kContent };

struct OutputDelta {
  enum class Kind { kReasoning, kContent, kToolCall, kToolArguments };
  Kind kind = Kind::kContent;
  // Never empty. kToolCall: the tool's name; kToolArguments: the next piece of the arguments' JSON.
  std::string text;
  int call = 0;  // kToolCall, kToolArguments: which call of the message, from 0
};

enum class OutputEnd {
  kStop,  // end token, stop string or stop token
  kCut    // length, abort, error
};

struct OutputParserOptions {
  // Reasoning when the prompt ends inside a think block (PreparedChat::parser_start).
  OutputState start = OutputState::kContent;
  // The `function` objects of the request. Empty: tags are plain text, unless calls are swallowed.
  std::vector<JsonValue> tools;
  bool swallow_calls = false;       // tool_choice none: blocks are taken out, no calls come
  bool parallel_tool_calls = true;  // false: what follows the first complete call is dropped
  bool split_reasoning = true;      // false: all is content, think marks are ordinary text
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  // Takes the next text (whole UTF-8 characters keep the deltas valid UTF-8) and appends what is
  // certain. Neighbouring deltas of one call differ in kind or in their tool call.
  void Push(std::string_view text, std::vector<OutputDelta>* out);
  // The end of the output: appends what was held. Once; nothing comes after it.
  void Finish(OutputEnd end, std::vector<OutputDelta>* out);

  // Whether the text so far ends in reasoning. A block in reasoning that may yet turn out to be
  // a call counts as such.
  [[nodiscard]] bool in_reasoning() const;
  // The first call is complete and no other is wanted.
  [[nodiscard]] bool wants_stop() const { return state_ == State::kDone; }
  [[nodiscard]] int num_calls() const { return num_calls_; }
  // After Finish; true without calls.
  [[nodiscard]] bool all_calls_complete() const { return !call_left_open_; }
  // By ParserRepair.
  [[nodiscard]] const std::array<int, kNumParserRepairs>& repairs() const {
    return repairs_.counts();
  }

 private:
  enum class State {
    kReasoning,
    kContent,
    kPending,    // after the tag that opens a block
    kHeld,       // a block in reasoning: a quotation if the reasoning ends after it
    kArguments,  // in a call, between parameters
    kValue,
    kBody,     // in a call that has a JSON object instead of parameters
    kBetween,  // after a call
    kDone
  };
  enum class Wrapper { kNone, kOther, kExact };

  void Read(std::string_view text);
  void On(const OutputToken& token);
  void OnReasoning(const OutputToken& token);
  void OnContent(const OutputToken& token);
  void OnPending(const OutputToken& token);
  void OnHeld(const OutputToken& token);
  void OnArguments(const OutputToken& token);
  void OnValue(const OutputToken& token);
  void OnBody(const OutputToken& token);
  void OnBetween(const OutputToken& token);

  [[nodiscard]] bool IsDeclaredCall(const OutputToken& token) const;
  void Hold(const OutputToken& token, std::string_view wrapper);
  void ReleaseHeld();
  void BeginCall(const OutputToken& token);
  void NextCall(const OutputToken& token);
  void CompleteCall(State next);
  void FinishTail(OutputEnd end);
  void FinishCall(OutputEnd end, std::string_view tail, bool tail_may_be_tag);
  void LeaveCallOpen();

  void ReasoningText(std::string_view text);
  void FlushReasoning();
  void ContentText(std::string_view text);
  void DropSpaceBeforeBlock();
  void Emit(OutputDelta::Kind kind, std::string_view text);
  void EmitArguments();

  ToolTable tools_;
  bool reads_tags_;
  bool swallow_calls_;
  bool parallel_tool_calls_;
  OutputLexer lexer_;
  ToolCallWriter writer_;
  ParserRepairCounts repairs_;

  State state_;
  bool finished_ = false;
  bool reasoning_is_final_ = false;  // no mark ends a reasoning any more
  // Line feeds at the end of the reasoning.
  std::string reasoning_space_;
  // White space before the first content or after a block, or line feeds at the end of the content.
  std::string content_space_;
  bool content_began_ = false;
  bool after_block_ = false;  // and no content since
  Wrapper wrapper_ = Wrapper::kNone;
  bool pending_in_reasoning_ = false;
  std::string pending_;  // the opening tag of a block and the white space after it
  std::string held_;     // from the opening tag of a block in reasoning
  std::string style_;    // of the tags that close the value or body at hand
  bool may_be_body_ = false;
  int num_calls_ = 0;
  bool call_left_open_ = false;

  std::string arguments_;                    // of the call at hand, not given out yet
  std::vector<OutputDelta>* out_ = nullptr;  // during Push and Finish
  size_t first_delta_ = 0;                   // of this Push
};

}  // namespace fathom
