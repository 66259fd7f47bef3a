#include "grammar/byte_automaton.h"

#include <array>
#include <functional>
#include <map>
#include <utility>

namespace fathom {

namespace {

// States of a UTF-8 reader: between characters, n continuation bytes missing, or after a first byte
// that narrows the second (overlong forms, surrogates, above U+10FFFF).
enum Utf8 : int { kBetween, kNeed1, kNeed2, kNeed3, kAfterE0, kAfterEd, kAfterF0, kAfterF4, kBad };

Utf8 NextUtf8(Utf8 state, int byte) {
  const auto in = [byte](int lo, int hi) { return byte >= lo && byte <= hi; };
  switch (state) {
    case kBetween:
      if (byte < 0x80) return kBetween;
      if (in(0xC2, 0xDF)) return kNeed1;
      if (byte == 0xE0) return kAfterE0;
      if (byte == 0xED) return kAfterEd;
      if (in(0xE1, 0xEF)) return kNeed2;
      if (byte == 0xF0) return kAfterF0;
      if (in(0xF1, 0xF3)) return kNeed3;
      return byte == 0xF4 ? kAfterF4 : kBad;
    case kNeed1:
      return in(0x80, 0xBF) ? kBetween : kBad;
    case kNeed2:
      return in(0x80, 0xBF) ? kNeed1 : kBad;
    case kNeed3:
      return in(0x80, 0xBF) ? kNeed2 : kBad;
    case kAfterE0:
      return in(0xA0, 0xBF) ? kNeed1 : kBad;
    case kAfterEd:
      return in(0x80, 0x9F) ? kNeed1 : kBad;
    case kAfterF0:
      return in(0x90, 0xBF) ? kNeed2 : kBad;
    case kAfterF4:
      return in(0x80, 0x8F) ? kNeed2 : kBad;
    case kBad:
      break;
  }
  return kBad;
}

// A tree of strings; node 0 is the root.
struct StringTree {
  struct Node {
    std::map<uint8_t, int> children;
    bool is_end = false;
  };
  std::vector<Node> nodes = std::vector<Node>(1);

  explicit StringTree(const std::vector<std::string>& strings) {
    for (const std::string& text : strings) {
      size_t at = 0;
      for (const char c : text) {
        const auto [child, is_new] =
            nodes[at].children.try_emplace(static_cast<uint8_t>(c), static_cast<int>(nodes.size()));
        at = static_cast<size_t>(child->second);
        if (is_new) nodes.emplace_back();
      }
      nodes[at].is_end = true;
    }
  }
  [[nodiscard]] int Child(int node, int byte) const {
    const auto& children = nodes[static_cast<size_t>(node)].children;
    const auto found = children.find(static_cast<uint8_t>(byte));
    return found == children.end() ? -1 : found->second;
  }
};

// The automaton of valid UTF-8 that `step` (state, byte -> state or -1, from state 0) lets through.
// Text may end between characters where `accepts` says so.
ByteAutomaton Utf8Product(const std::function<int(int, int)>& step,
                          const std::function<bool(int)>& accepts) {
  ByteAutomaton out;
  std::map<std::pair<int, int>, int> ids;
  std::vector<std::pair<int, int>> states;
  const auto id_of = [&](int utf8, int state) {
    const auto [found, is_new] = ids.try_emplace({utf8, state}, static_cast<int>(states.size()));
    if (is_new) {
      states.emplace_back(utf8, state);
      out.accepting.push_back(utf8 == kBetween && accepts(state));
    }
    return found->second;
  };
  id_of(kBetween, 0);
  for (size_t i = 0; i < states.size(); ++i) {
    int run_to = -1, run_begin = 0;
    for (int byte = 0; byte <= 256; ++byte) {
      int to = -1;
      if (byte < 256) {
        const Utf8 utf8 = NextUtf8(static_cast<Utf8>(states[i].first), byte);
        const int state = utf8 == kBad ? -1 : step(states[i].second, byte);
        if (state >= 0) to = id_of(utf8, state);
      }
      if (to == run_to) continue;
      if (run_to >= 0) {
        out.edges.push_back({static_cast<int32_t>(i), static_cast<uint8_t>(run_begin),
                             static_cast<uint8_t>(byte - 1), run_to});
      }
      run_to = to;
      run_begin = byte;
    }
  }
  return out;
}

}  // namespace

ByteAutomaton OneOfStrings(const std::vector<std::string>& strings) {
  const StringTree tree(strings);
  ByteAutomaton out;
  for (size_t i = 0; i < tree.nodes.size(); ++i) {
    out.accepting.push_back(tree.nodes[i].is_end);
    for (const auto& [byte, child] : tree.nodes[i].children) {
      out.edges.push_back({static_cast<int32_t>(i), byte, byte, child});
    }
  }
  return out;
}

ByteAutomaton Utf8TextWithout(const std::vector<std::string>& forbidden) {
  // Aho-Corasick: a state is the longest suffix read so far that begins a forbidden string.
  const StringTree tree(forbidden);
  const size_t count = tree.nodes.size();
  std::vector<std::array<int, 256>> next(count);
  std::vector<int> failure(count, 0);
  std::vector<bool> is_forbidden(count, false);
  std::vector<int> order = {0};
  for (size_t i = 0; i < order.size(); ++i) {
    const int node = order[i];
    const auto at = static_cast<size_t>(node);
    const auto fail = static_cast<size_t>(failure[at]);
    is_forbidden[at] = tree.nodes[at].is_end || (node != 0 && is_forbidden[fail]);
    for (int byte = 0; byte < 256; ++byte) {
      const auto b = static_cast<size_t>(byte);
      const int child = tree.Child(node, byte);
      const int fallback = node == 0 ? 0 : next[fail][b];
      next[at][b] = child >= 0 ? child : fallback;
      if (child < 0) continue;
      failure[static_cast<size_t>(child)] = fallback;
      order.push_back(child);
    }
  }
  return Utf8Product(
      [&](int state, int byte) {
        const int to = next[static_cast<size_t>(state)][static_cast<size_t>(byte)];
        return is_forbidden[static_cast<size_t>(to)] ? -1 : to;
      },
      [](int) { return true; });
}

namespace {

// Text of the bytes that `is_ok` takes, none of `names`; state `nodes.size()` is "differs already".
ByteAutomaton TextExcept(const std::vector<std::string>& names, bool may_be_empty,
                         const std::function<bool(int)>& is_ok) {
  const StringTree tree(names);
  const int differs = static_cast<int>(tree.nodes.size());
  return Utf8Product(
      [&](int state, int byte) {
        if (!is_ok(byte)) return -1;
        if (state == differs) return differs;
        const int child = tree.Child(state, byte);
        return child >= 0 ? child : differs;
      },
      [&](int state) {
        if (state == 0 && !may_be_empty) return false;
        return state == differs || !tree.nodes[static_cast<size_t>(state)].is_end;
      });
}

}  // namespace

ByteAutomaton PlainJsonTextExcept(const std::vector<std::string>& names) {
  return TextExcept(names, true,
                    [](int byte) { return byte >= 0x20 && byte != '"' && byte != '\\'; });
}

ByteAutomaton WordExcept(const std::vector<std::string>& names) {
  return TextExcept(names, false, [](int byte) {
    return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= '0' && byte <= '9') || byte == '_' || byte == '.' || byte == '-';
  });
}

}  // namespace fathom
