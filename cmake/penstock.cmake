# Build rules shared by every module: one library, one set of flags, one way to declare a test.
include_guard(GLOBAL)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_VERIFY_INTERFACE_HEADER_SETS ON)
# The program and libpenstock.so (front/) are made of the same objects.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# Every clone and every preset finds what another one has compiled from the same text.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=true
    CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})  # else none with precompiled headers
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()

add_library(penstock_flags INTERFACE)
target_include_directories(penstock_flags INTERFACE ${PROJECT_SOURCE_DIR})
# No contraction: every fused multiply-add in a kernel is written as one, so that all targets agree.
# For C++ alone: CUDA's compiler has options of its own.
# Functions of one source call each other directly, and may be inlined, as they are in a program.
target_compile_options(penstock_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-fno-semantic-interposition>"
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-ffp-contract=off>"
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${PENSTOCK_WERROR}>>:-Werror>)
# GCC 12 on x86 drops a conditional clearing of a float's low 16 bits (the rounding to bf16, say) at
# -O2; without its "mov word" splitting it does not. kernels' dtype_test has the case.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13
   AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(penstock_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-mtune-ctrl=partial_reg_stall>)
endif()
if(PENSTOCK_SANITIZE)
  target_compile_options(penstock_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PENSTOCK_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(penstock_flags INTERFACE -fsanitize=${PENSTOCK_SANITIZE})
  # What is left out and what is called instead of inlined halves the compiler's time. The address
  # sanitizer finds most of what null, object-size, vptr and pointer-overflow do. Alignment is
  # checked where bytes become values: in the engine's rooms, but not in config, train and tests.
  if(PENSTOCK_SANITIZE MATCHES address)
    target_compile_options(penstock_flags INTERFACE
      "$<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,object-size,vptr,pointer-overflow>"
      "$<$<COMPILE_LANGUAGE:CXX>:--param=asan-instrumentation-with-call-threshold=0>"
      "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:PENSTOCK_CHECKS_ALIGNMENT>>>>:-fno-sanitize=alignment>")
  endif()
  # GCC warns that tsan does not model atomic_thread_fence even where a library's header uses it.
  if(PENSTOCK_SANITIZE MATCHES thread)
    target_compile_options(penstock_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()

# A compiler spends most of its time on headers. So eight sources of a target are compiled as one:
# names in unnamed namespaces are unique within a target. Kernels stay apart, as Highway compiles a
# source once for each instruction set. Whoever changes one source again and again configures with
# -D PENSTOCK_COMPILE_TOGETHER=OFF.
#
# Sets OUT to the sources that take the place of SOURCE... in the target; objects stay what they are.
# CMake's own unity builds write absolute paths, with which ccache finds nothing in another clone.
function(penstock_compile_together out target module)
  set(sources ${ARGN})
  set(objects ${ARGN})
  list(FILTER sources EXCLUDE REGEX "^\\$<")
  list(FILTER objects INCLUDE REGEX "^\\$<")
  list(LENGTH sources count)
  if(NOT PENSTOCK_COMPILE_TOGETHER OR module MATCHES "^kernels" OR count LESS 2)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(together ${objects})
  math(EXPR last "${count} - 1")
  foreach(first RANGE 0 ${last} 8)
    list(SUBLIST sources ${first} 8 batch)
    set(includes "")
    foreach(source IN LISTS batch)
      cmake_path(ABSOLUTE_PATH source NORMALIZE)
      cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(APPEND includes "#include \"${source}\"\n")
    endforeach()
    set(joined ${CMAKE_CURRENT_BINARY_DIR}/${target}_${first}.cc)
    file(CONFIGURE OUTPUT ${joined} CONTENT "${includes}" @ONLY)
    list(APPEND together ${joined})
  endforeach()
  set(${out} ${together} PARENT_SCOPE)
endfunction()

# penstock_library(NAME SOURCES ... HEADERS ... [PUBLIC_DEPS ...] [PRIVATE_DEPS ...])
# NAME is the folder, with _ for /. HEADERS are public. A source includes its header first
# (scripts/check_includes), and scripts/check_tidy looks at each that has changed alone: that shows
# that the header needs no other. Headers that have no source are compiled alone by the target
# all_verify_interface_header_sets.
function(penstock_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS;PUBLIC_DEPS;PRIVATE_DEPS" ${ARGN})
  penstock_compile_together(sources penstock_${name} ${name} ${ARG_SOURCES})
  add_library(penstock_${name} STATIC ${sources})
  add_library(penstock::${name} ALIAS penstock_${name})
  string(REGEX REPLACE "\\.cc(;|$)" ".h\\1" headers_of_sources "${ARG_SOURCES}")
  set(headers_alone ${ARG_HEADERS})
  list(REMOVE_ITEM headers_alone ${headers_of_sources})
  target_sources(penstock_${name} PUBLIC
    FILE_SET headers_alone TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${headers_alone})
  # A size that loses its upper half is found by the first tensor of 2^32 elements, or by this.
  target_compile_options(penstock_${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wconversion;-Wno-sign-conversion>")
  if(NOT name MATCHES "^(train|config|numerics|run|sizing|tools)")
    set_target_properties(penstock_${name} PROPERTIES PENSTOCK_CHECKS_ALIGNMENT ON)
  endif()
  target_precompile_headers(penstock_${name} REUSE_FROM penstock_precompiled)
  target_link_libraries(penstock_${name}
    PUBLIC penstock_flags ${ARG_PUBLIC_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# What tests are compiled with and linked to.
function(penstock_test_options name)
  # Compiled in less time than with -O3; what takes long in tests is the libraries' code, mostly.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  # A sanitizer's reports name the functions of tests without debug information.
  if(PENSTOCK_SANITIZE)
    target_compile_options(${name} PRIVATE -g0)
  endif()
  # No test becomes part of a library, and all have one precompiled header.
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    target_compile_definitions(${name} PRIVATE PENSTOCK_EMULATED)
  endif()
  target_link_libraries(${name} PRIVATE penstock_flags ${ARGN} GTest::gtest GTest::gmock)
endfunction()

# penstock_test_objects(NAME SOURCES ... [DEPS ...])
# Tests and parts of tests that are compiled once for several executables, which have
# $<TARGET_OBJECTS:NAME> among their SOURCES.
function(penstock_test_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} OBJECT ${ARG_SOURCES})
  target_precompile_headers(${name} REUSE_FROM penstock_precompiled_for_tests)
  penstock_test_options(${name} ${ARG_DEPS})
endfunction()

# penstock_test(NAME MODULE m SOURCES ... [DEPS ...] [TIMEOUT s] [LABELS ...])
# One executable, one ctest entry; MODULE becomes its label, so that `ctest -L aio` is that module.
# The targets unit_tests and unit_tests_m build all executables and those of the module.
function(penstock_test name)
  cmake_parse_arguments(ARG "" "MODULE;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  penstock_compile_together(sources ${name} ${ARG_MODULE} ${ARG_SOURCES})
  add_executable(${name} ${sources})
  target_precompile_headers(${name} REUSE_FROM penstock_precompiled_for_tests)
  penstock_test_options(${name} ${ARG_DEPS})
  target_link_libraries(${name} PRIVATE GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_MODULE};unit;${ARG_LABELS}"
    TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT OMP_WAIT_POLICY=passive)
  foreach(group unit_tests unit_tests_${ARG_MODULE})
    if(NOT TARGET ${group})
      add_custom_target(${group})
    endif()
    add_dependencies(${group} ${name})
  endforeach()
endfunction()
