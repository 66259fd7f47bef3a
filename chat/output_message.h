// The deltas of one answer, joined: the message of an answer that is not streamed.
#pragma once

#include <string>
#include <vector>

#include "chat/output_parser.h"

namespace fathom {

struct OutputMessage {
  struct Call {
    std::string name;
    std::string arguments;  // JSON text; not valid where the output was cut inside the call
    friend bool operator==(const Call&, const Call&) = default;
  };
  std::string reasoning;
  std::string content;
  std::vector<Call> calls;

  // In the order in which OutputParser gave them.
  void Add(const OutputDelta& delta);
  friend bool operator==(const OutputMessage&, const OutputMessage&) = default;
};

}  // namespace fathom
