# Writes the header OUT with the version and the commit of SOURCE; run at every build, so that figures name the
# code that they were measured on. The file is left alone while it says the same.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR NOT commit)
  set(commit unknown)  # no git, or sources without history
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT [[
#pragma once

namespace fathom::bench {

inline constexpr const char* kVersion = "@VERSION@";
inline constexpr const char* kCommit = "@commit@";

}  // namespace fathom::bench
]])
