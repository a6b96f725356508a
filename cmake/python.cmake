# The Python package (pyproject.toml): libpenstock.so and the program penstock, and beside them the
# libraries that they need and that not every Linux has.
include_guard(GLOBAL)

# The older kind of run path, which also finds what the libraries beside it need of each other.
set_target_properties(penstock_shared penstock_tools_program PROPERTIES INSTALL_RPATH "$ORIGIN")
target_link_options(penstock_shared PRIVATE -Wl,--disable-new-dtags)
target_link_options(penstock_tools_program PRIVATE -Wl,--disable-new-dtags -Wl,--strip-all)

install(TARGETS penstock_shared LIBRARY DESTINATION penstock/lib COMPONENT python)
install(TARGETS penstock_tools_program RUNTIME DESTINATION penstock/lib COMPONENT python)
# Each library once, under the name by which it is looked for: a wheel has no symbolic links.
install(CODE "set(library \"$<TARGET_FILE:penstock_shared>\")
  set(program \"$<TARGET_FILE:penstock_tools_program>\")" COMPONENT python)
install(CODE [[
  # What Python's manylinux has of every Linux.
  set(system "^(ld-linux.*|lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+))\\.so\\.[0-9]+$")
  file(GET_RUNTIME_DEPENDENCIES LIBRARIES "${library}" EXECUTABLES "${program}"
    RESOLVED_DEPENDENCIES_VAR needed PRE_EXCLUDE_REGEXES "${system}")
  foreach(file IN LISTS needed)
    cmake_path(GET file FILENAME name)
    file(REAL_PATH "${file}" real)
    file(COPY_FILE "${real}" "${CMAKE_INSTALL_PREFIX}/penstock/lib/${name}")
  endforeach()]] COMPONENT python)
