#include "bench/load/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace fathom::load {
namespace {

using Json = nlohmann::ordered_json;

// With a space in front each is one token, of fathom-nano's vocabulary and of V3's.
constexpr std::array<std::string_view, 64> kWords = {
    "about", "after", "again",  "all",  "and",    "any",  "are",   "as",   "at",   "back",  "be",
    "by",    "can",   "city",   "data", "day",    "do",   "every", "far",  "find", "first", "for",
    "from",  "good",  "has",    "have", "home",   "in",   "into",  "is",   "it",   "just",  "keep",
    "last",  "left",  "like",   "list", "little", "long", "look",  "make", "name", "near",  "no",
    "not",   "now",   "number", "of",   "old",    "on",   "one",   "only", "open", "or",    "other",
    "out",   "place", "read",   "run",  "see",    "set",  "small", "so",   "some"};

// Streams of random numbers: conversations by their index, prefixes counted from the other end.
uint64_t PrefixStream(int64_t group) { return ~static_cast<uint64_t>(group); }

std::string Words(int64_t count, Random* random) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[random->Next() % kWords.size()];
  }
  return text;
}

Json MessageJson(std::string_view role, std::string_view text) {
  return {{"role", role}, {"content", text}};
}

Result<std::vector<Json>> ParseBodies(std::string_view text) {
  std::vector<Json> bodies;
  for (int line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view one = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (one.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Json body = Json::parse(one, nullptr, false);
    const std::string where = "line " + std::to_string(line) + ": ";
    if (!body.is_object()) return InvalidArgument(where + "no JSON object");
    if (!body.contains("messages") && !body.contains("prompt")) {
      return InvalidArgument(where + "neither messages nor prompt");
    }
    bodies.push_back(std::move(body));
  }
  if (bodies.empty()) return InvalidArgument("no bodies in it");
  return bodies;
}

}  // namespace

struct Workload::Data {
  WorkloadOptions options;
  Json extra = Json::object();
  std::vector<Json> bodies;
};

Result<Workload> Workload::Create(WorkloadOptions options) {
  auto data = std::make_shared<Data>();
  if (!options.extra_body.empty()) {
    data->extra = Json::parse(options.extra_body, nullptr, false);
    if (!data->extra.is_object()) return InvalidArgument("the extra body is no JSON object");
  }
  if (options.bodies) {
    if (options.turns > 1) {
      return InvalidArgument("bodies of a file are one turn each; several turns need made-up text");
    }
    FATHOM_ASSIGN_OR_RETURN(data->bodies, ParseBodies(*options.bodies));
    options.bodies->clear();
  }
  if (options.turns > 1 && options.endpoint == Endpoint::kCompletions) {
    return InvalidArgument("several turns need chat or messages, completions have no messages");
  }
  if (options.token_ids) {
    if (options.endpoint != Endpoint::kCompletions) {
      return InvalidArgument("prompts of token ids need the endpoint completions");
    }
    const auto [low, high] = *options.token_ids;
    if (low < 0 || low > high) return InvalidArgument("token ids must be a range LOW-HIGH");
  }
  data->options = std::move(options);
  return Workload(std::move(data));
}

const WorkloadOptions& Workload::options() const { return data_->options; }

int64_t Workload::num_bodies() const { return static_cast<int64_t>(data_->bodies.size()); }

Conversation Workload::NewConversation(int64_t index) const { return {data_, index}; }

Conversation::Conversation(std::shared_ptr<const Workload::Data> data, int64_t index)
    : data_(std::move(data)),
      index_(index),
      random_(data_->options.seed, static_cast<uint64_t>(index)),
      num_turns_(data_->options.turns) {}

// Around `tokens`, at least 1.
int64_t Conversation::Length(int64_t tokens) {
  const double share = data_->options.range_ratio;
  const auto low = static_cast<int64_t>(std::floor(static_cast<double>(tokens) * (1.0 - share)));
  const auto high = static_cast<int64_t>(std::ceil(static_cast<double>(tokens) * (1.0 + share)));
  return std::max<int64_t>(random_.Between(low, high), 1);
}

std::string Conversation::NextBody() {
  FATHOM_CHECK(!is_over(), "a conversation has as many bodies as turns");
  const WorkloadOptions& o = data_->options;
  Json body = Json::object();
  if (!o.model.empty()) body["model"] = o.model;
  body.update(data_->extra);
  std::optional<int64_t> max_tokens = o.max_tokens;
  if (!data_->bodies.empty()) {
    const Json& line = data_->bodies[static_cast<size_t>(index_) % data_->bodies.size()];
    const Json model = body.value("model", Json());
    body.update(line);
    if (!model.is_null()) body["model"] = model;
    if (o.endpoint != Endpoint::kCompletions && !body.contains("messages")) {
      body["messages"] = Json::array({{{"role", "user"}, {"content", body.at("prompt")}}});
      body.erase("prompt");
    }
  } else {
    const int64_t group = index_ % o.num_prefixes;
    Random prefix_random(o.seed, PrefixStream(group));
    const int64_t num_input = Length(o.input_tokens);
    if (max_tokens) max_tokens = Length(*max_tokens);
    if (o.token_ids) {
      std::vector<int64_t> ids;
      const auto [low, high] = *o.token_ids;
      for (int64_t i = 0; i < o.prefix_tokens; ++i) ids.push_back(prefix_random.Between(low, high));
      for (int64_t i = 0; i < num_input; ++i) ids.push_back(random_.Between(low, high));
      body["prompt"] = std::move(ids);
    } else {
      const std::string prefix = Words(o.prefix_tokens, &prefix_random);
      std::string text = Words(num_input, &random_);
      if (o.endpoint == Endpoint::kCompletions) {
        body["prompt"] = prefix.empty() ? std::move(text) : prefix + " " + text;
      } else {
        messages_.push_back({false, std::move(text)});
        Json messages = Json::array();
        if (!prefix.empty() && o.endpoint == Endpoint::kChat) {
          messages.push_back(MessageJson("system", prefix));
        } else if (!prefix.empty()) {
          body["system"] = prefix;
        }
        for (const auto& message : messages_) {
          messages.push_back(MessageJson(message.is_answer ? "assistant" : "user", message.text));
        }
        body["messages"] = std::move(messages);
      }
    }
  }
  if (max_tokens) {
    // Whichever of the two a body of a file has would otherwise be left to contradict this one.
    body.erase("max_completion_tokens");
    body["max_tokens"] = *max_tokens;
  }
  if (o.ignore_eos) body["ignore_eos"] = true;
  body["stream"] = true;
  if (o.endpoint != Endpoint::kMessages) body["stream_options"] = {{"include_usage", true}};
  ++turn_;
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Conversation::AddAnswer(std::string text) {
  if (!is_over()) messages_.push_back({true, std::move(text)});
}

}  // namespace fathom::load
