// Splits the model's text, as it streams, into reasoning and content. For requests without tools:
// DSML markup is ordinary text here.
//
// Think marks and the EOS text never reach the client; what could be the start of one is held until
// the next characters tell. White space before the first content is held too, because a think mark
// after it drops it. Everything else goes out with the call that brought it, and the joined output
// does not depend on how the text was cut. Thread safety: single-threaded.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fathom {

enum class OutputState { kReasoning, kContent };

struct OutputDelta {
  OutputState kind = OutputState::kContent;
  std::string text;  // never empty
};

class ReasoningSplitter {
 public:
  // Reasoning when the prompt ends inside a think block (PreparedChat::parser_start).
  explicit ReasoningSplitter(OutputState start) : state_(start) {}

  // Takes the next text (whole UTF-8 characters keep the deltas valid UTF-8). Neighbouring deltas
  // differ in kind: one that ends the reasoning and starts the answer makes two.
  std::vector<OutputDelta> Push(std::string_view text);

  // End of the output, for whatever reason: gives out what was held.
  std::vector<OutputDelta> Finish();

  // State after the text so far; a held start of a mark has not changed it yet.
  [[nodiscard]] OutputState state() const { return state_; }

 private:
  void Emit(std::string_view text, std::vector<OutputDelta>& out);

  OutputState state_;
  std::string pending_;         // starts with '<' and may still become a mark
  std::string leading_space_;   // white space before the first content
  bool content_began_ = false;  // something other than white space was given out as content
};

}  // namespace fathom
