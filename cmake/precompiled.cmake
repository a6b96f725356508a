# Headers that nearly every source includes, read once for all libraries and once for all tests.
#
# They are of other projects only: a change of ours compiles what includes it and nothing more.
# -D CMAKE_DISABLE_PRECOMPILE_HEADERS=ON leaves each source with what it includes itself; so
# scripts/check_tidy compiles, which finds a source that includes too little.
include_guard(GLOBAL)

# GCC 12 for Arm fails at arm_sve.h behind them.
if(CMAKE_CROSSCOMPILING)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()

# Adds NAME, which reads HEADER... with the flags of the libraries.
function(penstock_precompile name)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "// The precompiled headers alone.\n")
  add_library(${name} OBJECT ${source})
  target_precompile_headers(${name} PRIVATE ${ARGN})
  target_link_libraries(${name} PRIVATE penstock_flags fmt::fmt nlohmann_json::nlohmann_json)
endfunction()

set(headers
  <fmt/format.h>
  <algorithm>
  <array>
  <atomic>
  <chrono>
  <cmath>
  <condition_variable>
  <cstdint>
  <cstring>
  <deque>
  <filesystem>
  <functional>
  <limits>
  <map>
  <memory>
  <mutex>
  <nlohmann/json.hpp>
  <optional>
  <set>
  <span>
  <sstream>
  <string>
  <string_view>
  <thread>
  <utility>
  <variant>
  <vector>)
penstock_precompile(penstock_precompiled ${headers})
if(NOT PENSTOCK_PYTHON)
  penstock_precompile(penstock_precompiled_for_tests <gmock/gmock.h> <gtest/gtest.h> ${headers})
  penstock_test_options(penstock_precompiled_for_tests)
endif()
