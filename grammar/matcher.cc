#include "grammar/matcher.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "grammar/thompson.h"

namespace fathom {

namespace {

constexpr int32_t kEnd = -1;
// A grammar that keeps more open than this is read as if the rest were not there: what is accepted
// still conforms, and since whatever is open can be completed, no dead end comes of it.
constexpr size_t kMaxItems = 4'000;
constexpr size_t kMaxFrames = 8'000;
// Numbers remembered before Compact forgets them: 16 MiB.
constexpr size_t kMaxRemembered = size_t{4} << 20;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9E3779B97F4A7C15ull + (hash << 6) + (hash >> 2);
  return hash * 0xFF51AFD7ED558CCDull;
}

template <typename T>
uint64_t HashOf(const std::vector<T>& pairs, uint64_t seed) {
  uint64_t hash = seed;
  for (const T& pair : pairs) {
    hash = Mix(hash, (static_cast<uint64_t>(static_cast<uint32_t>(pair.state)) << 32) |
                         static_cast<uint32_t>(pair.node));
  }
  return hash ^ (hash >> 29);
}

}  // namespace

void Matcher::ItemSet::Clear() {
  // One large configuration must not make all later ones wipe a large table.
  if (items_.size() * 8 < slots_.size()) slots_.resize(64);
  std::fill(slots_.begin(), slots_.end(), -1);
  items_.clear();
}

void Matcher::ItemSet::Insert(Item item) {
  if ((items_.size() + 1) * 2 > slots_.size()) Grow();
  const size_t mask = slots_.size() - 1;
  uint64_t hash = Mix(static_cast<uint64_t>(item.state), static_cast<uint64_t>(item.node));
  for (size_t slot = (hash ^ (hash >> 32)) & mask;; slot = (slot + 1) & mask) {
    if (slots_[slot] < 0) {
      slots_[slot] = static_cast<int32_t>(items_.size());
      items_.push_back(item);
      return;
    }
    if (items_[static_cast<size_t>(slots_[slot])] == item) return;
  }
}

void Matcher::ItemSet::Grow() {
  const std::vector<Item> items = std::move(items_);
  items_.clear();
  slots_.assign(std::max<size_t>(64, slots_.size() * 2), -1);
  for (const Item& item : items) Insert(item);
}

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar)
    : grammar_(std::move(grammar)),
      num_symbols_(static_cast<size_t>(grammar_->num_symbols())),
      called_(grammar_->rules.size()) {
  Reset();
}

void Matcher::Reset() {
  nodes_.clear();
  frames_.clear();
  configs_.clear();
  items_.clear();
  next_.clear();
  node_of_hash_.clear();
  config_of_hash_.clear();
  std::vector<Frame> end = {{kEnd, 0}};
  const int32_t root_node = InternNode(end);
  set_.Clear();
  set_.Insert({grammar_->rules[static_cast<size_t>(grammar_->root)].start, root_node});
  start_ = Close();
}

Matcher::Config Matcher::StepText(Config from, std::string_view text) {
  for (const char c : text) {
    if (from == kDead) break;
    from = StepByte(from, static_cast<uint8_t>(c));
  }
  return from;
}

Matcher::Symbol Matcher::ShortestStep(Config config) {
  Symbol best = -1;
  int64_t best_distance = std::numeric_limits<int64_t>::max();
  for (Symbol symbol = 0; symbol < grammar_->num_symbols(); ++symbol) {
    const Config next = Step(config, symbol);
    if (next == kDead || Distance(next) >= best_distance) continue;
    best = symbol;
    best_distance = Distance(next);
  }
  return best;
}

Matcher::Config Matcher::Compute(Config from, Symbol symbol) {
  const auto value = static_cast<uint16_t>(grammar_->byte_of_symbol[static_cast<size_t>(symbol)]);
  set_.Clear();
  const ConfigData& config = At(from);
  work_ += config.end - config.begin;
  for (int32_t i = config.begin; i < config.end; ++i) {
    const Item item = items_[static_cast<size_t>(i)];
    const CompiledGrammar::State& state = StateOf(item.state);
    for (int32_t e = state.edges_begin; e < state.edges_end; ++e) {
      const CompiledGrammar::Edge& edge = grammar_->edges[static_cast<size_t>(e)];
      if (edge.lo > value) break;  // edges are ordered by lo
      if (value <= edge.hi) set_.Insert({edge.to, item.node});
    }
  }
  const Config to = set_.items().empty() ? kDead : Close();
  next_[static_cast<size_t>(from) * num_symbols_ + static_cast<size_t>(symbol)] = to;
  return to;
}

Matcher::Config Matcher::Close() {
  const bool is_complete = PopFinished();
  PushCalls();
  work_ += static_cast<int64_t>(set_.items().size());
  std::vector<Item> kept;
  for (const Item& item : set_.items()) {
    const CompiledGrammar::State& state = StateOf(item.state);
    if (state.edges_begin != state.edges_end) kept.push_back(item);
  }
  if (kept.size() > kMaxItems) kept.resize(kMaxItems);
  std::sort(kept.begin(), kept.end());
  return InternConfig(kept, is_complete);
}

// Returns from finished rules. True when the text may end.
bool Matcher::PopFinished() {
  bool is_complete = false, goes_on = false;
  size_t num_popped = 0;
  for (size_t i = 0; i < set_.items().size(); ++i) {
    const Item item = set_.items()[i];
    const CompiledGrammar::State& state = StateOf(item.state);
    goes_on =
        goes_on || state.edges_begin != state.edges_end || state.calls_begin != state.calls_end;
    if (!state.is_final || (goes_on && num_popped > kMaxFrames)) continue;
    const Node node = nodes_[static_cast<size_t>(item.node)];
    num_popped += static_cast<size_t>(node.end - node.begin);
    for (int32_t f = node.begin; f < node.end; ++f) {
      const Frame frame = frames_[static_cast<size_t>(f)];
      if (frame.state == kEnd) {
        is_complete = true;
      } else if (!goes_on || set_.items().size() < kMaxItems) {
        set_.Insert({frame.state, frame.node});
      }
    }
  }
  work_ += static_cast<int64_t>(num_popped);
  return is_complete;
}

// Enters called rules, callers before callees, so that all places a rule was called from are known
// when its node is made. A rule that may be empty is not returned from here: its callers' states
// already include what follows it.
void Matcher::PushCalls() {
  num_frames_ = 0;
  const size_t num_returned = set_.items().size();
  for (size_t i = 0; i < num_returned; ++i) AddCalls(set_.items()[i]);
  while (!to_enter_.empty()) {
    std::pop_heap(to_enter_.begin(), to_enter_.end(), std::greater<>());
    const RuleId rule = to_enter_.back().second;
    to_enter_.pop_back();
    std::vector<Frame>& frames = called_[static_cast<size_t>(rule)];
    const Item entered = {grammar_->rules[static_cast<size_t>(rule)].start, InternNode(frames)};
    frames.clear();
    set_.Insert(entered);
    AddCalls(entered);
  }
}

void Matcher::AddCalls(Item item) {
  const CompiledGrammar::State& state = StateOf(item.state);
  for (int32_t c = state.calls_begin; c < state.calls_end; ++c) {
    const CompiledGrammar::Call& call = grammar_->calls[static_cast<size_t>(c)];
    std::vector<Frame>& frames = called_[static_cast<size_t>(call.rule)];
    if (frames.empty()) {
      to_enter_.emplace_back(grammar_->rules[static_cast<size_t>(call.rule)].rank, call.rule);
      std::push_heap(to_enter_.begin(), to_enter_.end(), std::greater<>());
    } else if (num_frames_ > kMaxFrames) {
      continue;
    }
    if (call.to != CompiledGrammar::kTailCall) {
      frames.push_back({call.to, item.node});
      ++num_frames_;
      continue;
    }
    const Node& node = nodes_[static_cast<size_t>(item.node)];
    frames.insert(frames.end(), frames_.begin() + node.begin, frames_.begin() + node.end);
    num_frames_ += static_cast<size_t>(node.end - node.begin);
  }
}

int32_t Matcher::InternNode(std::vector<Frame>& frames) {
  work_ += static_cast<int64_t>(frames.size());
  std::sort(frames.begin(), frames.end());
  frames.erase(std::unique(frames.begin(), frames.end()), frames.end());
  const uint64_t hash = HashOf(frames, 1);
  const auto [found, is_new] = node_of_hash_.try_emplace(hash, -1);
  for (int32_t id = found->second; id >= 0; id = nodes_[static_cast<size_t>(id)].same_hash) {
    const Node& node = nodes_[static_cast<size_t>(id)];
    if (std::equal(frames.begin(), frames.end(), frames_.begin() + node.begin,
                   frames_.begin() + node.end)) {
      return id;
    }
  }
  Node node;
  node.begin = static_cast<int32_t>(frames_.size());
  node.end = node.begin + static_cast<int32_t>(frames.size());
  node.same_hash = found->second;
  node.distance = kNoWay;
  for (const Frame& frame : frames) {
    const int64_t distance =
        frame.state == kEnd
            ? 0
            : StateOf(frame.state).distance + nodes_[static_cast<size_t>(frame.node)].distance;
    node.distance = std::min(node.distance, distance);
  }
  frames_.insert(frames_.end(), frames.begin(), frames.end());
  nodes_.push_back(node);
  return found->second = static_cast<int32_t>(nodes_.size() - 1);
}

Matcher::Config Matcher::InternConfig(std::vector<Item>& items, bool is_complete) {
  const uint64_t hash = HashOf(items, is_complete ? 3 : 2);
  const auto [found, is_new] = config_of_hash_.try_emplace(hash, -1);
  for (int32_t id = found->second; id >= 0; id = At(id).same_hash) {
    const ConfigData& config = At(id);
    if (config.is_complete == is_complete &&
        std::equal(items.begin(), items.end(), items_.begin() + config.begin,
                   items_.begin() + config.end)) {
      return id;
    }
  }
  ConfigData config;
  config.begin = static_cast<int32_t>(items_.size());
  config.end = config.begin + static_cast<int32_t>(items.size());
  config.same_hash = found->second;
  config.is_complete = is_complete;
  config.distance = is_complete ? 0 : kNoWay;
  for (const Item& item : items) {
    const int64_t distance =
        StateOf(item.state).distance + nodes_[static_cast<size_t>(item.node)].distance;
    config.distance = std::min(config.distance, distance);
  }
  items_.insert(items_.end(), items.begin(), items.end());
  configs_.push_back(config);
  next_.resize(configs_.size() * num_symbols_, kUnknown);
  return found->second = static_cast<int32_t>(configs_.size() - 1);
}

Matcher::Config Matcher::Compact(Config config) {
  if (items_.size() * 2 + frames_.size() * 4 + next_.size() < kMaxRemembered) return config;
  ++generation_;
  const std::vector<Node> nodes = nodes_;
  const std::vector<Frame> frames = frames_;
  const ConfigData data = At(config);
  std::vector<Item> items(items_.begin() + data.begin, items_.begin() + data.end);
  Reset();

  // A node's frames name older nodes only, so that going through the needed ones in order finds
  // the new numbers of what they stand on.
  std::vector<bool> is_needed(nodes.size(), false);
  for (const Item& item : items) is_needed[static_cast<size_t>(item.node)] = true;
  for (size_t i = nodes.size(); i-- > 0;) {
    for (int32_t f = nodes[i].begin; is_needed[i] && f < nodes[i].end; ++f) {
      is_needed[static_cast<size_t>(frames[static_cast<size_t>(f)].node)] = true;
    }
  }
  std::vector<int32_t> new_id(nodes.size(), 0);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!is_needed[i]) continue;
    std::vector<Frame> moved(frames.begin() + nodes[i].begin, frames.begin() + nodes[i].end);
    for (Frame& frame : moved) frame.node = new_id[static_cast<size_t>(frame.node)];
    new_id[i] = InternNode(moved);
  }
  for (Item& item : items) item.node = new_id[static_cast<size_t>(item.node)];
  std::sort(items.begin(), items.end());
  return InternConfig(items, data.is_complete);
}

}  // namespace fathom
