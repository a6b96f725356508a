# Whether ranks on CPU devices are built: sets PENSTOCK_HAS_GLOO.
include_guard(GLOBAL)

set(PENSTOCK_HAS_GLOO OFF)
if(PENSTOCK_GLOO)
  find_package(Gloo CONFIG QUIET)
  if(TARGET gloo)
    set(PENSTOCK_HAS_GLOO ON)
  elseif(NOT PENSTOCK_GLOO STREQUAL "AUTO")
    message(FATAL_ERROR
      "PENSTOCK_GLOO is ON, but there is no Gloo: install libgloo-dev, or set PENSTOCK_GLOO=OFF")
  endif()
endif()
