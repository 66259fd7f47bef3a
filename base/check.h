// FATHOM_CHECK ends the process on a mistake of our own; nothing that comes from outside (a
// request, a file, a flag) may reach one: those get a Status. FATHOM_DCHECK does the same in builds
// with FATHOM_DEBUG_CHECKS and vanishes elsewhere.
#pragma once

#include <string>

namespace fathom {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);
}  // namespace fathom

#define FATHOM_CHECK(condition, message)                                              \
  do {                                                                                \
    if (!(condition)) ::fathom::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)

#ifdef FATHOM_DEBUG_CHECKS
#define FATHOM_DCHECK(condition, message) FATHOM_CHECK(condition, message)
#else
#define FATHOM_DCHECK(condition, message) \
  do {                                    \
  } while (false)
#endif
