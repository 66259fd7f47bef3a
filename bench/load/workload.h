// Workload: the bodies of the requests that a load generator sends.
//
// A workload is a row of conversations, each a function of (options, index) alone: which requests
// are sent does not depend on when answers come. Made-up texts are common English words, which are
// a token each in large vocabularies; or token ids, for completions. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/load/answer_reader.h"
#include "bench/load/random.h"

namespace fathom::load {

struct WorkloadOptions {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;  // empty: bodies of a file name their own
  uint64_t seed = 0;

  // Made-up texts; lengths in words or ids.
  int64_t input_tokens = 1024;  // of a turn
  double range_ratio = 0.0;     // lengths of turns and answers are within +- this share
  int64_t prefix_tokens = 0;    // in front of a conversation, the same for all of its group
  int num_prefixes = 1;         // groups
  int turns = 1;                // questions of a conversation; each repeats all before it
  // Completions: prompts are ids of this range, both ends included, instead of words.
  std::optional<std::pair<int64_t, int64_t>> token_ids;

  // Instead of them: JSON objects, one a line, sent in order and then again from the first. One
  // without messages may have a `prompt`.
  std::optional<std::string> bodies;

  std::optional<int64_t> max_tokens;  // absent only with `bodies`, which may have their own
  bool ignore_eos = false;
  std::string extra_body;  // JSON object: members of every body, before all others
};

class Conversation;

class Workload {
 public:
  // kInvalidArgument says which option or line is wrong.
  static Result<Workload> Create(WorkloadOptions options);

  [[nodiscard]] const WorkloadOptions& options() const;
  // Bodies of the file; 0 where texts are made up.
  [[nodiscard]] int64_t num_bodies() const;
  [[nodiscard]] Conversation NewConversation(int64_t index) const;

 private:
  friend class Conversation;
  struct Data;
  explicit Workload(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  std::shared_ptr<const Data> data_;  // its conversations share it
};

// Single-threaded.
class Conversation {
 public:
  // The body of the next request. Not once it is over.
  std::string NextBody();
  // What the server said to it; needed where another turn follows.
  void AddAnswer(std::string text);
  [[nodiscard]] bool is_over() const { return turn_ == num_turns_; }

 private:
  friend class Workload;
  struct Message {
    bool is_answer = false;
    std::string text;
  };
  Conversation(std::shared_ptr<const Workload::Data> data, int64_t index);
  int64_t Length(int64_t tokens);

  std::shared_ptr<const Workload::Data> data_;
  int64_t index_;
  Random random_;
  int num_turns_;
  int turn_ = 0;
  std::vector<Message> messages_;
};

}  // namespace fathom::load
