#include "cache/manager_simulation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "cache/block_manager.h"
#include "cache/manager_checks.h"
#include "cache/reuse_model.h"
#include "cache/simulated_text.h"
#include "cache/tag_memory.h"

namespace fathom {
namespace {

constexpr const char* kNames[] = {"kAdmit",    "kStep",    "kKeep",    "kFork",
                                  "kTruncate", "kRelease", "kPreempt", "kClear"};

struct Sequence {
  bool active = false;
  SequenceId id = 0;
  std::unique_ptr<PrefixKeys> keys;
  Text text;
  uint32_t continuation = 0;
  int64_t length = 0;
  bool chained = false;
  int64_t return_to = 0;  // Truncate to here and behind it must work
  RollingPoint rolling;
  // The step in preparation.
  int64_t end = 0;
  std::vector<int64_t> points;
  int64_t rolling_point = -1;
  std::array<std::set<int64_t>, kNumCacheClasses> fresh;  // logical blocks
};

class Simulation {
 public:
  explicit Simulation(const SimulationConfig& config)
      : config_(config),
        planner_(CacheLayout(config.geometry, config.dtypes)),
        manager_(std::move(BlockManager::Create(planner_, config.num_slabs,
                                                {config.max_sequences, config.max_positions,
                                                 config.max_step_positions, true})
                               .value())),
        memory_(planner_.layout(), manager_->pool()),
        sequences_(static_cast<size_t>(config.max_sequences)) {
    histories_.emplace_back(0);
    max_points_ = 4 * config.num_slabs * planner_.BlocksPerSlab(CacheClass::kSwa);
  }

  SimulationResult Run(const std::vector<Op>& ops) {
    for (size_t i = 0; i < ops.size() && !failed(); ++i) {
      Do(ops[i]);
      if (i % config_.check_every == 0 || i + 1 == ops.size()) CheckAll();
      if (failed()) result_.failure = "operation " + std::to_string(i) + ": " + *result_.failure;
    }
    if (!failed()) End();
    result_.counts.evictions = manager_->num_evictions();
    return result_;
  }

 private:
  [[nodiscard]] bool failed() const { return result_.failure.has_value(); }
  void Require(bool condition, const char* what) {
    if (!condition && !failed()) result_.failure = what;
  }
  [[nodiscard]] bool Has(size_t c) const {
    return planner_.BlocksPerSlab(static_cast<CacheClass>(c)) > 0;
  }
  [[nodiscard]] static int64_t PerBlock(size_t c) {
    return CacheLayout::PositionsPerBlock(static_cast<CacheClass>(c));
  }
  [[nodiscard]] int64_t LiveBegin(size_t c, int64_t position) const {
    return std::max<int64_t>(0, planner_.layout().LiveBegin(static_cast<CacheClass>(c), position));
  }
  [[nodiscard]] int32_t NumberAt(const Sequence& s, size_t c, int64_t logical) const {
    const BlockTable t = manager_->Table(s.id, static_cast<CacheClass>(c));
    return logical < t.first || logical >= t.first + t.num_blocks ? kNoBlock
                                                                  : t.blocks[logical - t.first];
  }
  // Blocks for all of [begin, end).
  [[nodiscard]] bool HasBlocks(const Sequence& s, size_t c, int64_t begin, int64_t end) const {
    if (begin >= end) return true;
    for (int64_t b = begin / PerBlock(c); b * PerBlock(c) < end; ++b) {
      if (NumberAt(s, c, b) == kNoBlock) return false;
    }
    return true;
  }
  [[nodiscard]] bool HoldsWindow(const Sequence& s, int64_t position) const {
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      if (Has(c) && !HasBlocks(s, c, LiveBegin(c, position), position)) return false;
    }
    return true;
  }
  Sequence* Pick(uint32_t number) {
    std::vector<Sequence*> active;
    for (Sequence& s : sequences_) {
      if (s.active) active.push_back(&s);
    }
    return active.empty() ? nullptr : active[number % active.size()];
  }
  Sequence* FreeSlot() {
    for (Sequence& s : sequences_) {
      if (!s.active) return &s;
    }
    return nullptr;
  }

  void Do(const Op& op) {
    switch (op.kind) {
      case OpKind::kAdmit:
        return Admit(op);
      case OpKind::kStep:
        return Step(op);
      case OpKind::kKeep:
        if (Sequence* s = Pick(op.a)) {
          Draw draw(op.b);
          Keep(*s, draw.Below(2) == 0 ? s->length : draw.Below(s->length + 1));
        }
        return;
      case OpKind::kFork:
        return Fork(op);
      case OpKind::kTruncate:
        return Truncate(op);
      case OpKind::kRelease:
      case OpKind::kPreempt:
        if (Sequence* s = Pick(op.a)) {
          if (op.kind == OpKind::kPreempt) Keep(*s, s->length);
          Release(*s);
        }
        return;
      case OpKind::kClear:
        return Clear();
    }
  }

  // Since the last Clear nothing was given up for want of memory, so the model knows every resume
  // point; else it knows those that there may be.
  [[nodiscard]] bool Exact() const {
    return manager_->num_evictions() == evictions_at_clear_ && model_.num_points() < max_points_;
  }

  // Whole blocks that running sequences have in the index.
  [[nodiscard]] std::set<uint64_t> RunningBlocks() const {
    std::set<uint64_t> blocks;
    for (const Sequence& s : sequences_) {
      if (!s.active || !s.chained) continue;
      blocks.merge(ReuseModel::WholeBlocks(s.text, s.length));
    }
    return blocks;
  }

  void AddPoint(Sequence& s, int64_t position, bool rolling) {
    model_.Add(s.text, position);
    if (rolling) model_.Roll(s.text, position, Exact(), s.rolling);
  }

  void CheckMatch(const Text& prompt, const PrefixMatch& match) {
    if (!manager_->prefix_caching()) {
      return Require(match.position == 0 && match.miss == PrefixMiss::kDisabled,
                     "hit without cache");
    }
    const PrefixMatch want = model_.Expected(prompt, RunningBlocks());
    Require(match.position <= want.position &&
                (match.position == 0 || model_.Has(prompt, match.position)),
            "hit where no resume point was made");
    if (!Exact()) return;
    Require(match.position == want.position, "hit shorter than it could be");
    Require(match.junction == want.junction, "junction");
    Require(match.miss == want.miss, "reason of a miss");
  }

  // ---- operations ------------------------------------------------------------------------------

  void Admit(const Op& op) {
    Sequence* slot = FreeSlot();
    if (slot == nullptr) return;
    Draw draw(op.b);
    // Text of somebody else, cut, and something new.
    std::vector<const Text*> sources;
    for (const Text& t : histories_) sources.push_back(&t);
    for (const Sequence& s : sequences_) {
      if (s.active) sources.push_back(&s.text);
    }
    Text text = *sources[op.a % sources.size()];
    const int64_t size = text.size();
    int64_t cut = size;
    switch (draw.Below(6)) {
      case 0:
        cut = draw.Below(size + 1);
        break;
      case 1:
        cut = size / kBlockPositions * kBlockPositions;
        break;
      case 2:
        cut = std::max<int64_t>(0, size - draw.Below(20));
        break;
      default:
        break;
    }
    if (draw.Below(20) == 0) {
      cut = 0;
      text = Text(static_cast<int>(draw.Below(3)));
    }
    text.Cut(cut);
    const auto continuation = static_cast<uint32_t>(draw.Below(3));
    const int64_t more = draw.Below(draw.Below(4) == 0 ? 600 : 20);
    text.Grow(std::clamp<int64_t>(cut + more, 1, config_.max_positions), continuation);

    auto keys =
        std::make_unique<PrefixKeys>(PrefixSeed("model"), std::to_string(text.salt), text.tokens);
    const PrefixMatch match = manager_->Match(text.tokens, *keys);
    CheckMatch(text, match);
    const int64_t target =
        std::min(config_.max_positions, text.size() + 1 + draw.Below(config_.max_positions));
    // Mostly as a scheduler would; now and then more is admitted than fits.
    if (!manager_->Fits(target, match) && (config_.ample || op.c % 4 != 0)) {
      return Require(!config_.ample, "ample memory is not enough");
    }
    const std::optional<SequenceId> id = manager_->Admit(match, keys.get(), target);
    if (!id) {
      ++result_.counts.refusals;
      return Require(!config_.ample, "Admit fails");
    }
    *slot = Sequence();
    slot->active = true;
    slot->id = *id;
    slot->keys = std::move(keys);
    slot->continuation = continuation;
    slot->length = slot->return_to = match.position;
    slot->chained = manager_->prefix_caching();
    Require(manager_->length(*id) == match.position, "a sequence starts where it hit");
    if (match.position > 0) {
      ++result_.counts.hits;
      result_.counts.unaligned_hits += match.position % kBlockPositions != 0;
      model_.Use(text, match.position);
    }
    slot->text = std::move(text);
  }

  void Step(const Op& op) {
    std::vector<Sequence*> stepping;
    Draw draw(op.b);
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& s = sequences_[i];
      if (!s.active || (op.a >> i) % 2 == 0 || s.length == config_.max_positions) continue;
      if (Prepare(s, draw)) stepping.push_back(&s);
      if (failed()) return;
    }
    result_.counts.steps += static_cast<int64_t>(stepping.size());
    // The forward pass.
    for (const BlockCopy& copy : manager_->copies()) {
      ++result_.counts.copies;
      if (config_.sabotage == Sabotage::kNoCopies) continue;
      memory_.Copy(copy.cache_class, copy.from, copy.to);
    }
    manager_->ClearCopies();
    for (Sequence* s : stepping) {
      for (size_t c = 0; c < kNumCacheClasses; ++c) {
        for (const int64_t b : s->fresh[c]) {
          if (NumberAt(*s, c, b) == kNoBlock) continue;
          memory_.Poison(static_cast<CacheClass>(c), NumberAt(*s, c, b));
        }
      }
    }
    for (Sequence* s : stepping) CheckReads(*s);
    for (Sequence* s : stepping) Store(*s);
    for (Sequence* s : stepping) {
      if (!failed()) Commit(*s);
    }
  }

  bool Prepare(Sequence& s, Draw& draw) {
    int64_t n = 1;
    if (const int64_t kind = draw.Below(8); kind == 4) {
      n = 1 + draw.Below(8);  // drafts
    } else if (kind == 5 || kind == 6) {
      n = 1 + draw.Below(config_.max_step_positions);
    } else if (kind == 7) {
      n = kBlockPositions - s.length % kBlockPositions;
    }
    n = std::min<int64_t>({n, config_.max_step_positions, config_.max_positions - s.length});
    s.end = s.length + n;
    s.points.clear();
    s.rolling_point = -1;
    switch (draw.Below(8)) {
      case 0:
        s.points = {s.end};
        s.rolling_point = s.end;
        break;
      case 1:
        for (int64_t p = (s.length / kBlockPositions + 1) * kBlockPositions; p <= s.end;
             p += kBlockPositions) {
          s.points.push_back(p);
          s.rolling_point = p;
        }
        break;
      case 2:
        s.points.push_back(s.length + 1 + draw.Below(n));
        if (s.points[0] < s.end) s.points.push_back(s.end);
        break;
      case 3:
        if (n > 1) s.points = {s.end - 1};
        break;
      default:
        break;
    }
    StepKeeps keeps{s.points, s.rolling_point, -1};
    if (draw.Below(3) == 0) keeps.return_to = draw.Below(s.end + 1);
    const int64_t return_to = keeps.return_to < 0 ? s.end : std::max(keeps.return_to, s.length);

    std::array<std::set<int64_t>, kNumCacheClasses> before = HeldBy(s);
    const bool extended = manager_->Extend(s.id, s.end, keeps);
    const std::array<std::set<int64_t>, kNumCacheClasses> after = HeldBy(s);
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      if (!Has(c)) continue;
      s.fresh[c].clear();
      std::set_difference(after[c].begin(), after[c].end(), before[c].begin(), before[c].end(),
                          std::inserter(s.fresh[c], s.fresh[c].end()));
      Require(HasBlocks(s, c, LiveBegin(c, s.length), s.length), "Extend drops what is read");
      for (const int64_t b : after[c]) {
        Require(b >= LiveBegin(c, s.length) / PerBlock(c), "blocks behind the window are held");
      }
      if (!extended) {
        Require(s.fresh[c].empty(), "a step that fails keeps blocks");
        continue;
      }
      const int64_t begin = std::max(c == 0 ? 0 : LiveBegin(c, return_to), s.length);
      Require(HasBlocks(s, c, begin, s.end), "a step has no blocks for what it stores");
      const BlockTable table = manager_->Table(s.id, static_cast<CacheClass>(c));
      Require((table.first + table.num_blocks) * PerBlock(c) >= s.end, "table ends early");
    }
    if (extended) {
      s.return_to = return_to;
      // As many as memory has room for.
      std::erase_if(s.points, [&](int64_t p) { return !HoldsWindow(s, p); });
    } else {
      s.return_to = s.length;  // what lies behind the window is given back
      ++result_.counts.refusals;
      Require(!config_.ample, "Extend fails");
    }
    return extended;
  }

  [[nodiscard]] std::array<std::set<int64_t>, kNumCacheClasses> HeldBy(const Sequence& s) const {
    std::array<std::set<int64_t>, kNumCacheClasses> held;
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      const BlockTable t = manager_->Table(s.id, static_cast<CacheClass>(c));
      for (int64_t i = 0; i < t.num_blocks; ++i) {
        if (t.blocks[i] != kNoBlock) held[c].insert(held[c].end(), t.first + i);
      }
    }
    return held;
  }

  void CheckReads(const Sequence& s) {
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      if (!Has(c)) continue;
      for (int64_t p = LiveBegin(c, s.length); p < s.length; ++p) {
        const int32_t number = NumberAt(s, c, p / PerBlock(c));
        if (memory_.At(static_cast<CacheClass>(c), number, p) == s.text.Hash(p + 1)) continue;
        if (failed()) return;
        result_.failure = "class " + std::to_string(c) + " position " + std::to_string(p) + " of " +
                          std::to_string(s.length) + " does not hold what was stored";
        return;
      }
    }
  }

  void Store(Sequence& s) {
    s.text.Grow(s.end, s.continuation);
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      if (!Has(c)) continue;
      if (config_.sabotage == Sabotage::kNoStates && c == 2) continue;
      for (int64_t p = s.length; p < s.end; ++p) {
        const int32_t number = NumberAt(s, c, p / PerBlock(c));
        Require(number != kNoBlock || (c != 0 && p < LiveBegin(c, s.return_to)),
                "a step lost blocks");
        if (number == kNoBlock) continue;
        uint64_t tag = s.text.Hash(p + 1);
        if (config_.sabotage == Sabotage::kWrongToken && p == 300) ++tag;
        memory_.At(static_cast<CacheClass>(c), number, p) = tag;
      }
    }
  }

  void Commit(Sequence& s) {
    // Steps prepared after it may have taken the blocks of its points.
    std::erase_if(s.points, [&](int64_t p) { return !HoldsWindow(s, p); });
    manager_->Commit(s.id, s.text.tokens);
    s.length = s.end;
    Require(manager_->length(s.id) == s.length, "length");
    if (!s.chained) return;
    for (const int64_t p : s.points) AddPoint(s, p, p == s.rolling_point);
  }

  void Keep(Sequence& s, int64_t position) {
    const bool want = s.chained && position > 0 && HoldsWindow(s, position);
    Require(manager_->Keep(s.id, s.text.tokens, position) == want, "Keep");
    if (want) AddPoint(s, position, false);
  }

  void Fork(const Op& op) {
    Sequence* from = Pick(op.a);
    Sequence* slot = FreeSlot();
    if (from == nullptr || slot == nullptr) return;
    auto keys = std::make_unique<PrefixKeys>(*from->keys);
    const std::optional<SequenceId> id = manager_->Fork(from->id, keys.get());
    if (!id) {
      ++result_.counts.refusals;
      return Require(!config_.ample, "Fork fails");
    }
    *slot = Sequence();
    slot->active = true;
    slot->id = *id;
    slot->keys = std::move(keys);
    slot->text = from->text;
    slot->text.Cut(from->length);
    slot->keys->Truncate(static_cast<int>(from->length / kBlockPositions));
    slot->continuation = op.b % 3;
    slot->length = slot->return_to = from->length;
    slot->chained = from->chained;
    Require(manager_->length(*id) == slot->length, "length of a fork");
  }

  void Truncate(const Op& op) {
    Sequence* s = Pick(op.a);
    if (s == nullptr) return;
    Draw draw(op.b);
    int64_t to = s->return_to + draw.Below(s->length - std::min(s->return_to, s->length) + 1);
    if (draw.Below(4) == 0) to = draw.Below(s->length + 1);
    if (draw.Below(16) == 0) to = 0;
    to = std::min(to, s->length);
    const bool held = HoldsWindow(*s, to);
    Require(held || to < s->return_to, "what a step may return to is not held");
    const auto before = HeldBy(*s);
    const bool done = manager_->Truncate(s->id, to);
    Require(held || !done, "Truncate to what is not held");
    Require(done || !held || (!config_.ample && to % kBlockPositions != 0), "Truncate fails");
    if (!done) {
      result_.counts.refusals += held;
      // Only what nobody needs may have gone.
      const auto after = HeldBy(*s);
      for (size_t c = 0; c < kNumCacheClasses; ++c) {
        const int64_t needed = LiveBegin(c, std::min(s->return_to, to)) / PerBlock(c);
        const bool kept = std::all_of(before[c].begin(), before[c].end(), [&](int64_t b) {
          return b < needed || after[c].contains(b);
        });
        Require(kept && after[c].size() <= before[c].size(),
                "Truncate fails and changes something");
      }
      return Require(manager_->length(s->id) == s->length, "Truncate fails and changes the length");
    }
    s->length = to;
    s->return_to = std::min(s->return_to, to);
    // A backend that rejects drafts knows the next token; a prompt's tokens stay.
    if (draw.Below(2) == 0) {
      s->text.Cut(to);
      s->continuation = static_cast<uint32_t>(draw.Below(3));
    }
  }

  void Release(Sequence& s) {
    manager_->Release(s.id);
    s.text.Cut(s.length);
    histories_.push_back(std::move(s.text));
    if (histories_.size() > 8) histories_.pop_front();
    s = Sequence();
  }

  void Clear() {
    manager_->ClearPrefixes();
    model_.Clear();
    evictions_at_clear_ = manager_->num_evictions();
    for (Sequence& s : sequences_) s.chained = false;
    Require(manager_->prefixes().num_points() == 0 && manager_->prefixes().num_nodes() == 0,
            "Clear leaves prefixes");
  }

  // ---- between operations ----------------------------------------------------------------------

  void CheckAll() {
    if (failed()) return;
    std::vector<SequenceId> ids;
    for (const Sequence& s : sequences_) {
      if (s.active) ids.push_back(s.id);
    }
    Require(manager_->num_sequences() == static_cast<int>(ids.size()), "number of sequences");
    if (std::string why = ContradictionIn(*manager_, ids); !why.empty() && !failed()) {
      result_.failure = why;
    }
    CheckSharing();
    if (!Exact() || !manager_->prefix_caching()) return;
    Require(manager_->prefixes().num_points() == model_.num_points(), "number of resume points");
    std::set<uint64_t> blocks = model_.Blocks();
    blocks.merge(RunningBlocks());
    Require(manager_->prefixes().num_nodes() == static_cast<int64_t>(blocks.size()),
            "number of prefixes");
  }

  // Two tables share a block only where both have all of it, with the same content.
  void CheckSharing() {
    struct First {
      int64_t logical;
      uint64_t content;
      bool whole;
    };
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      std::map<int32_t, First> seen;
      for (const Sequence& s : sequences_) {
        if (!s.active) continue;
        const BlockTable t = manager_->Table(s.id, static_cast<CacheClass>(c));
        for (int64_t i = 0; i < t.num_blocks; ++i) {
          if (t.blocks[i] == kNoBlock) continue;
          const int64_t end = (t.first + i + 1) * PerBlock(c);
          const bool whole = end <= s.length;
          const First mine = {t.first + i, s.text.Hash(whole ? end : 0), whole};
          const auto [other, fresh] = seen.emplace(t.blocks[i], mine);
          Require(fresh || (whole && other->second.whole && other->second.logical == mine.logical &&
                            other->second.content == mine.content),
                  "a block is shared that somebody writes");
        }
      }
    }
  }

  void End() {
    for (Sequence& s : sequences_) {
      if (s.active) Release(s);
    }
    CheckAll();
    for (size_t c = 0; c < kNumCacheClasses; ++c) {
      Require(manager_->pool().Use(static_cast<CacheClass>(c)).in_use == 0, "in use at the end");
    }
    Clear();
    CheckAll();
    Require(manager_->pool().num_free_slabs() == config_.num_slabs, "slabs are lost");
  }

  const SimulationConfig& config_;
  CachePlanner planner_;
  std::unique_ptr<BlockManager> manager_;
  TagMemory memory_;
  std::vector<Sequence> sequences_;
  std::deque<Text> histories_;
  ReuseModel model_;
  int64_t max_points_ = 0;
  int64_t evictions_at_clear_ = 0;
  SimulationResult result_;
};

}  // namespace

std::vector<Op> RandomOps(uint32_t seed, size_t num_ops) {
  constexpr int kWeights[] = {160, 600, 50, 40, 70, 45, 32, 3};
  std::mt19937 random(seed);
  std::vector<Op> ops(num_ops);
  for (Op& op : ops) {
    int rest = static_cast<int>(random() % 1000);
    int kind = 0;
    while (rest >= kWeights[kind]) rest -= kWeights[kind++];
    op = {static_cast<OpKind>(kind), static_cast<uint32_t>(random()),
          static_cast<uint32_t>(random()), static_cast<uint32_t>(random())};
  }
  return ops;
}

std::string ToString(const std::vector<Op>& ops) {
  std::string text;
  for (const Op& op : ops) {
    text += std::string("{OpKind::") + kNames[static_cast<int>(op.kind)] + ", " +
            std::to_string(op.a) + "u, " + std::to_string(op.b) + "u, " + std::to_string(op.c) +
            "u},\n";
  }
  return text;
}

SimulationResult Simulate(const SimulationConfig& config, const std::vector<Op>& ops) {
  return Simulation(config).Run(ops);
}

}  // namespace fathom
