// Shrink: a shorter sequence of operations that still fails, for tests of histories. Used by tests
// only.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace fathom {

// Leaves out runs of operations, long ones first, as long as `fails` holds without them; in the end
// no single one can be left out. `fails(ops)` must hold. Calls it at most `max_runs` times.
template <typename Op>
std::vector<Op> Shrink(std::vector<Op> ops,
                       const std::function<bool(const std::vector<Op>&)>& fails,
                       int max_runs = 2000) {
  for (size_t run = ops.size(); run > 0;) {
    bool shorter = false;
    for (size_t begin = 0; begin < ops.size() && max_runs > 0;) {
      const size_t end = std::min(ops.size(), begin + run);
      std::vector<Op> rest(ops.begin(), ops.begin() + static_cast<ptrdiff_t>(begin));
      rest.insert(rest.end(), ops.begin() + static_cast<ptrdiff_t>(end), ops.end());
      --max_runs;
      if (fails(rest)) {
        ops = std::move(rest);
        shorter = true;
      } else {
        begin = end;
      }
    }
    if (max_runs == 0) break;
    // What was left out may make other operations superfluous, so single ones are tried until none
    // goes.
    if (run == 1 && !shorter) break;
    run = run == 1 ? 1 : run / 2;
  }
  return ops;
}

}  // namespace fathom
