# Writes the commit that is being built as a C++ source, if it is another than the file has already:
#   cmake -D SOURCE=<the repository> -D OUT=<file> -P program_commit.cmake
# Run at every build, because a commit changes no file that a build looks at. Without git, or outside
# of a repository, the commit is "unknown".
find_program(GIT git)
set(commit "")
if(GIT)
  execute_process(
    COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --exclude=* --abbrev=12
    OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT commit MATCHES "^[0-9a-f]+(-dirty)?$")
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[
#include "train/doctor/program_checks.h"

namespace penstock::train {

const char* ProgramCommit() { return "@commit@"; }

}  // namespace penstock::train
]] @ONLY)
