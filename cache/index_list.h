// IndexList: a doubly linked list over elements of an array, by index; the links live outside the
// elements. All operations are O(1) and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fathom {

inline constexpr int32_t kNoIndex = -1;

struct IndexLink {
  int32_t prev = kNoIndex;
  int32_t next = kNoIndex;
};

// Which list an element is in is the caller's knowledge; an element is in at most one list per
// array of links.
class IndexList {
 public:
  [[nodiscard]] bool empty() const { return head_ == kNoIndex; }
  [[nodiscard]] int32_t front() const { return head_; }
  [[nodiscard]] int32_t back() const { return tail_; }

  void PushBack(std::vector<IndexLink>& links, int32_t i) {
    links[static_cast<size_t>(i)] = {tail_, kNoIndex};
    (tail_ == kNoIndex ? head_ : links[static_cast<size_t>(tail_)].next) = i;
    tail_ = i;
  }
  void PushFront(std::vector<IndexLink>& links, int32_t i) {
    links[static_cast<size_t>(i)] = {kNoIndex, head_};
    (head_ == kNoIndex ? tail_ : links[static_cast<size_t>(head_)].prev) = i;
    head_ = i;
  }
  void Remove(std::vector<IndexLink>& links, int32_t i) {
    const IndexLink link = links[static_cast<size_t>(i)];
    (link.prev == kNoIndex ? head_ : links[static_cast<size_t>(link.prev)].next) = link.next;
    (link.next == kNoIndex ? tail_ : links[static_cast<size_t>(link.next)].prev) = link.prev;
    links[static_cast<size_t>(i)] = {};
  }
  int32_t PopFront(std::vector<IndexLink>& links) {
    const int32_t i = head_;
    if (i != kNoIndex) Remove(links, i);
    return i;
  }

 private:
  int32_t head_ = kNoIndex;
  int32_t tail_ = kNoIndex;
};

}  // namespace fathom
